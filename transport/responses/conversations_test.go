package responses

import (
	"encoding/json/v2"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// call sends a request and decodes its answer, if it is to have the status.
func (r *rig) call(method, path, body string, status int, into any) string {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://example.com"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if body == "" {
		req.Body = nil
	}
	res, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		r.t.Fatalf("%s %s: %d %s %v", method, path, res.StatusCode, data, err)
	}
	if into != nil {
		if err := json.Unmarshal(data, into, json.MatchCaseInsensitiveNames(true)); err != nil {
			r.t.Fatalf("%s: %v", data, err)
		}
	}
	return string(data)
}

type listed struct {
	Data []struct {
		ID, Type, Role, Output string
		CallID                 string `json:"call_id"`
		Content                []struct{ Type, Text string }
	} `json:"data"`
	LastID  string `json:"last_id"`
	HasMore bool   `json:"has_more"`
}

// words are the items of a list in short.
func (l *listed) words() string {
	var out []string
	for _, i := range l.Data {
		text := i.Output
		for _, p := range i.Content {
			text += p.Text
		}
		if i.Type == "message" {
			out = append(out, i.Role+":"+text)
		} else {
			out = append(out, i.Type+":"+i.CallID+text)
		}
	}
	return strings.Join(out, " ")
}

func TestInputItems(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Text("Hi."))
		var first, second struct{ ID string }
		r.call("POST", "/v1/responses", `{"input":"a"}`, 200, &first)
		r.call("POST", "/v1/responses", `{"previous_response_id":"`+first.ID+`","input":[{"role":"user","content":[{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]},`+
			`{"type":"function_call","call_id":"x","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"x","output":"o"}]}`, 200, &second)
		var l listed
		r.call("GET", "/v1/responses/"+second.ID+"/input_items?order=asc", "", 200, &l)
		if got := l.words(); got != "user:a assistant:Hi. user:bc function_call:x function_call_output:xo" || l.HasMore {
			t.Error(got)
		}
		// Pages have the same ids, the newest first.
		var seen []string
		for after := ""; ; {
			var page listed
			r.call("GET", "/v1/responses/"+second.ID+"/input_items?limit=2"+after, "", 200, &page)
			for _, i := range page.Data {
				seen = append([]string{i.ID}, seen...)
			}
			if !page.HasMore {
				break
			}
			after = "&after=" + page.LastID
		}
		for i := range l.Data {
			if len(seen) != len(l.Data) || seen[i] != l.Data[i].ID {
				t.Fatalf("%v, want the ids of %+v", seen, l.Data)
			}
		}
		for _, bad := range []string{"?limit=0", "?limit=101", "?order=x", "?after=x", "?x=1"} {
			r.call("GET", "/v1/responses/"+second.ID+"/input_items"+bad, "", 400, nil)
		}
		r.call("GET", "/v1/responses/resp_0/input_items", "", 404, nil)
	})
}

func TestConversations(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Text("Hi."))
		var c Conversation
		r.call("POST", "/v1/conversations", `{"items":[{"role":"system","content":"s"}],"metadata":{"a":"b"}}`, 200, &c)
		if c.Object != "conversation" || c.Metadata["a"] != "b" || c.CreatedAt == 0 {
			t.Errorf("%+v", c)
		}
		at := "/v1/conversations/" + c.ID
		text := r.call("POST", "/v1/responses", `{"conversation":"`+c.ID+`","input":"one"}`, 200, nil)
		if !strings.Contains(text, `"conversation":{"id":"`+c.ID+`"}`) {
			t.Error(text)
		}
		r.call("POST", "/v1/responses", `{"conversation":{"id":"`+c.ID+`"},"input":"two"}`, 200, nil)
		if got := string(r.engine.Requests()[1].Prompt.Chat.Messages); got != `[{"role":"system","content":"s"},{"role":"user","content":"one"},{"role":"assistant","content":"Hi."},{"role":"user","content":"two"}]` {
			t.Error(got)
		}
		var l, added listed
		r.call("GET", at+"/items?order=asc", "", 200, &l)
		if got := l.words(); got != "system:s user:one assistant:Hi. user:two assistant:Hi." {
			t.Error(got)
		}
		r.call("POST", at+"/items", `{"items":[{"role":"user","content":"three"}]}`, 200, &added)
		r.call("GET", at+"/items/"+added.Data[0].ID, "", 200, nil)
		r.call("DELETE", at+"/items/"+added.Data[0].ID, "", 200, &c)
		r.call("GET", at+"/items/"+added.Data[0].ID, "", 404, nil)
		r.call("POST", at, `{"metadata":{"a":"c"}}`, 200, &c)
		if c.Metadata["a"] != "c" {
			t.Errorf("%+v", c)
		}
		r.call("POST", "/v1/responses", `{"conversation":"`+c.ID+`","previous_response_id":"x","input":"two"}`, 400, nil)
		r.call("POST", "/v1/responses", `{"conversation":"conv_0","input":"two"}`, 404, nil)
		r.call("POST", "/v1/conversations", `{"items":[{"role":"x","content":"s"}]}`, 400, nil)
		r.call("DELETE", at, "", 200, nil)
		r.call("GET", at, "", 404, nil)
	})
}

// TestTalksAreBounded: the largest owner's oldest conversation goes first.
func TestTalksAreBounded(t *testing.T) {
	s := newTalks(zerolog.Nop())
	add := func(owner string, bytes int) string {
		text := strings.Repeat("x", bytes)
		c, err := s.add(owner, []InputItem{{Type: "function_call_output", Output: &text}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.ID
	}
	small := add("a", 10)
	first := add("b", maxTalkBytes-1000)
	for range maxTalksSum / maxTalkBytes {
		add("b", maxTalkBytes-1000)
	}
	if _, err := s.get("a", small); err != nil {
		t.Error("another owner's conversation is gone")
	}
	if _, err := s.get("b", first); err == nil {
		t.Error("the oldest one is still there")
	}
	if _, err := s.get("a", first); err == nil {
		t.Error("another owner's conversation is visible")
	}
	sum := 0
	for _, c := range s.byID {
		sum += c.bytes
	}
	if sum != s.bytes || sum > maxTalksSum {
		t.Errorf("%d bytes, counted %d", sum, s.bytes)
	}
	text := strings.Repeat("x", maxTalkBytes)
	if _, err := s.add("c", []InputItem{{Type: "function_call_output", Output: &text}}, nil); err == nil {
		t.Error("a conversation is larger than the limit")
	}
}

// saved is records in memory.
type saved struct {
	byName map[string][]byte
	refuse error
}

func (s *saved) SaveRecords(changes map[string][]byte) error {
	if s.refuse != nil {
		return s.refuse
	}
	for name, value := range changes {
		if s.byName[name] = value; value == nil {
			delete(s.byName, name)
		}
	}
	return nil
}

func (s *saved) Records(f func(name string, value []byte) error) error {
	for name, value := range s.byName {
		if err := f(name, value); err != nil {
			return err
		}
	}
	return nil
}

// TestConversationsAreSaved: what was answered is saved, with all that responses add; another door reads it and goes on. A change that cannot be saved
// is refused and not made.
func TestConversationsAreSaved(t *testing.T) {
	disk := &saved{byName: map[string][]byte{"other": nil, "conv_bad": []byte("{")}}
	var c, gone Conversation
	said := func(r *rig) (text, words string) {
		var l listed
		text = r.call("GET", "/v1/conversations/"+c.ID+"/items?order=asc", "", 200, &l)
		return text, l.words()
	}
	before, words := "", ""
	inBubble(t, Options{}, func(r *rig) {
		if err := r.door.SaveIn(disk); err != nil {
			t.Fatal(err)
		}
		r.engine.Play(enginetest.Text("Hi."))
		r.call("POST", "/v1/conversations", `{"items":[{"role":"system","content":"s"},{"type":"function_call_output","call_id":"c","output":""}],"metadata":{"a":"b"}}`, 200, &c)
		r.call("POST", "/v1/conversations", `{}`, 200, &gone)
		r.call("DELETE", "/v1/conversations/"+gone.ID, "", 200, nil)
		r.call("POST", "/v1/responses", `{"conversation":"`+c.ID+`","input":"one"}`, 200, nil)
		r.call("POST", "/v1/conversations/"+c.ID, `{"metadata":{"a":"c"}}`, 200, nil)
		if before, words = said(r); words == "" {
			t.Error("nothing was said")
		}
		disk.refuse = errors.New("full")
		r.call("POST", "/v1/conversations/"+c.ID+"/items", `{"items":[{"role":"user","content":"three"}]}`, 503, nil)
		r.call("POST", "/v1/conversations/"+c.ID, `{"metadata":{"a":"d"}}`, 503, nil)
		r.call("POST", "/v1/conversations", `{}`, 503, nil)
		r.call("DELETE", "/v1/conversations/"+c.ID, "", 503, nil)
		if after, _ := said(r); after != before {
			t.Errorf("%s was changed to %s", before, after)
		}
		disk.refuse = nil
	})
	kept := maps.Clone(disk.byName)
	inBubble(t, Options{}, func(r *rig) {
		if err := r.door.SaveIn(disk); err != nil {
			t.Fatal(err)
		}
		if after, _ := said(r); after != before {
			t.Errorf("%s became %s", before, after)
		}
		var again Conversation
		if r.call("GET", "/v1/conversations/"+c.ID, "", 200, &again); again.Metadata["a"] != "c" || again.CreatedAt != c.CreatedAt {
			t.Errorf("%+v became %+v", c, again)
		}
		r.call("GET", "/v1/conversations/"+gone.ID, "", 404, nil)
		r.engine.Play(enginetest.Text("Yes."))
		r.call("POST", "/v1/responses", `{"conversation":"`+c.ID+`","input":"two"}`, 200, nil)
		if _, after := said(r); after != words+" user:two assistant:Yes." {
			t.Error(after)
		}
		time.Sleep(talkLife + time.Hour)
		r.call("GET", "/v1/conversations/"+c.ID, "", 404, nil)
	})
	if len(kept) != 3 || len(disk.byName) != 2 {
		t.Errorf("%d records, %d when the conversation is too old", len(kept), len(disk.byName))
	}
	if err := newTalks(zerolog.Nop()).load(&broken{}); err == nil {
		t.Error("records that cannot be read")
	}
}

type broken struct{ saved }

func (broken) Records(func(string, []byte) error) error { return errors.New("damaged") }

// TestItemReferences: an input may refer to items of earlier responses, of its owner only.
func TestItemReferences(t *testing.T) {
	inBubble(t, Options{Owner: func(r *http.Request) string { return r.Header.Get("X-Owner") }}, func(r *rig) {
		r.engine.Play(enginetest.Steps(
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ReasoningPart, Text: "Hm"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "f", CallID: "c1"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: "{}"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}}))
		var first struct{ Output []struct{ ID string } }
		r.call("POST", "/v1/responses", `{"input":"a"}`, 200, &first)
		if len(first.Output) != 2 {
			t.Fatalf("%+v", first)
		}
		refer := `{"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"` + first.Output[0].ID + `"},{"type":"item_reference","id":"` + first.Output[1].ID + `"},{"type":"function_call_output","call_id":"c1","output":"o"}]}`
		r.call("POST", "/v1/responses", refer, 200, nil)
		want := `[{"role":"user","content":"a"},{"role":"assistant","content":null,"reasoning_content":"Hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"o","tool_call_id":"c1"}]`
		if got := string(r.engine.Requests()[1].Prompt.Chat.Messages); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if text := r.call("POST", "/v1/responses", `{"input":[{"type":"item_reference","id":"msg_0"}]}`, 400, nil); !strings.Contains(text, `"param":"input[0].id"`) {
			t.Error(text)
		}
		req, err := http.NewRequest("POST", "http://example.com/v1/responses", strings.NewReader(refer))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Owner", "another")
		res, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("another owner's item: %d", res.StatusCode)
		}
	})
}
