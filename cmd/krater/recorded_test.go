package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/stages/text/toolcall"
	"krater/transport/enginetest"
	"krater/transport/server"
)

const answersFile = "../../stages/text/toolcall/testdata/answers.jsonl"

// familyText is a text as a model of a family writes it, and the parts that a client must see.
type familyText struct {
	Name, Template, Text, Reasoning, Answer string
	Inside, Hermes                          bool
	NoTools                                 bool `json:"no_tools"`
	Calls                                   []recordedCall
}

type recordedCall struct{ Name, Arguments, ID string }

func readRecorded(t *testing.T) (all []*familyText) {
	t.Helper()
	data, err := os.ReadFile(answersFile)
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(data)); d.More(); {
		r := &familyText{}
		if err := d.Decode(r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// script plays the text in pieces of a few characters, taken apart as the request asks for it.
func (r *familyText) script(req *engine.Request) (enginetest.Script, error) {
	var steps []enginetest.Step
	f := toolcall.Detect(r.Template)
	p := f.New(toolcall.Options{
		Tools: req.Parts.Tools, Single: req.Parts.Single, Inside: r.Inside, Hermes: r.Hermes,
		Special: func(s string) bool { return strings.HasPrefix(s, "<|") },
	})
	usage := engine.Usage{}
	add := func(events []toolcall.Event) {
		for e := range actors.PartEvents(events, f.ShortIDs()) {
			steps = append(steps, enginetest.Step{Event: e})
		}
	}
	for text := []rune(r.Text); len(text) > 0 && !p.Over(); usage.Completion++ {
		n := min(3, len(text))
		add(p.Push(string(text[:n])))
		if text = text[n:]; p.Reasoning() {
			usage.Reasoning++
		}
	}
	add(p.Flush())
	steps = append(steps, enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: usage}})
	return enginetest.Steps(steps...), nil
}

// lastWords returns role and text of the last message.
func lastWords(messages []byte) (role, text string) {
	var all []struct {
		Role    string
		Content json.RawMessage
	}
	if json.Unmarshal(messages, &all) != nil || len(all) == 0 {
		return "", ""
	}
	last := all[len(all)-1]
	if json.Unmarshal(last.Content, &text) == nil {
		return last.Role, text
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(last.Content, &parts) // else there is no text
	for _, p := range parts {
		text += p.Text
	}
	return last.Role, text
}

// recordedServer serves all doors with an engine that plays the text that the prompt's last words
// name, or what follows "Repeat: " there, or text without end. After a result of a tool it answers
// "Done: " and the result. GET /test/open says how many answers are being made.
func recordedServer(t *testing.T) *httptest.Server {
	t.Helper()
	byName := map[string]*familyText{}
	for _, r := range readRecorded(t) {
		byName[r.Name] = r
	}
	e := enginetest.New()
	e.SetInfo(func(i *engine.Info) { i.Context = 1 << 16 })
	e.Choose(func(req *engine.Request) (enginetest.Script, error) {
		if req.Prompt.Chat == nil {
			return enginetest.Text("raw"), nil
		}
		role, text := lastWords(req.Prompt.Chat.Messages)
		if role == "tool" {
			return enginetest.Text("Done: ", text), nil
		}
		if r := byName[text]; r != nil {
			return r.script(req)
		}
		if _, rest, ok := strings.Cut(text, "Repeat: "); ok {
			return enginetest.Text(rest), nil
		}
		if text == "forever" {
			return enginetest.Forever("x"), nil
		}
		return enginetest.Text("no such text"), nil
	})
	srv, _ := openDoors(e, server.Options{}, 0, zerolog.Nop())
	srv.Open("GET /test/open", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, e.Open()) }))
	s := httptest.NewServer(srv.Handler())
	t.Cleanup(s.Close)
	return s
}

func askFor(t *testing.T, url string, body map[string]any, into any) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(url, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var raw bytes.Buffer
	_, _ = raw.ReadFrom(res.Body) // a short one does not decode
	if err := json.Unmarshal(raw.Bytes(), into); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", res.StatusCode, raw.Bytes(), err)
	}
}

// seen is an answer as a client sees it, in one line.
func seen(reasoning, answer string, calls []recordedCall) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q", reasoning, answer)
	for _, c := range calls {
		fmt.Fprintf(&b, " %s %s", c.Name, c.Arguments)
		if c.ID != "" {
			fmt.Fprintf(&b, " %s", c.ID)
		}
	}
	return b.String()
}

// given leaves out an id that the server made.
func given(id string) string {
	if strings.HasPrefix(id, "call_") || strings.HasPrefix(id, "toolu_") || len(id) == 9 && id != "abcdefghi" {
		return ""
	}
	return id
}

type toolCallWire struct {
	ID       string
	Function struct{ Name, Arguments string }
}

func wireCalls(in []toolCallWire) (out []recordedCall) {
	for _, c := range in {
		out = append(out, recordedCall{c.Function.Name, c.Function.Arguments, given(c.ID)})
	}
	return out
}

// recordedTools are the tools of the answers, in the shapes of chat completions and of responses.
func recordedTools(t *testing.T) (nested, flat []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(answersFile), "tools.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &nested); err != nil {
		t.Fatal(err)
	}
	for _, tool := range nested {
		one := map[string]any{"type": "function"}
		for name, value := range tool["function"].(map[string]any) {
			one[name] = value
		}
		flat = append(flat, one)
	}
	return nested, flat
}

// askChat asks the chat door, askResponses the other one.
func askChat(t *testing.T, url string, ask map[string]any) (answer, finish string) {
	t.Helper()
	var chat struct {
		Choices []struct {
			Message struct {
				Content   *string
				Reasoning string         `json:"reasoning_content"`
				Calls     []toolCallWire `json:"tool_calls"`
			}
			Finish string `json:"finish_reason"`
		}
	}
	askFor(t, url+"/v1/chat/completions", ask, &chat)
	m := chat.Choices[0].Message
	content := ""
	if m.Content != nil {
		content = *m.Content
	}
	return seen(m.Reasoning, content, wireCalls(m.Calls)), chat.Choices[0].Finish
}

func askResponses(t *testing.T, url string, ask map[string]any) string {
	t.Helper()
	var response struct {
		Output []struct {
			Type, Name, Arguments string
			CallID                string `json:"call_id"`
			Content               []struct{ Text string }
		}
	}
	askFor(t, url+"/v1/responses", ask, &response)
	reasoning, answer, calls := "", "", []recordedCall(nil)
	for _, item := range response.Output {
		switch item.Type {
		case "reasoning":
			reasoning += item.Content[0].Text
		case "message":
			answer += item.Content[0].Text
		case "function_call":
			calls = append(calls, recordedCall{item.Name, item.Arguments, given(item.CallID)})
		}
	}
	return seen(reasoning, answer, calls)
}

// sameObject is an object's JSON in one of its many forms.
func sameObject(t *testing.T, data []byte) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// askMessages asks the Anthropic door.
func askMessages(t *testing.T, url, name string, tools []map[string]any) string {
	t.Helper()
	ask := map[string]any{"max_tokens": 1000, "messages": []map[string]string{{"role": "user", "content": name}}}
	if tools != nil {
		var own []map[string]any
		for _, tool := range tools {
			schema := tool["parameters"]
			if schema == nil {
				schema = map[string]any{"type": "object"}
			}
			own = append(own, map[string]any{"name": tool["name"], "input_schema": schema})
		}
		ask["tools"] = own
	}
	var message struct {
		Content []struct {
			Type, Text, Thinking, Name, ID string
			Input                          json.RawMessage
		}
	}
	askFor(t, url+"/v1/messages", ask, &message)
	reasoning, answer, calls := "", "", []recordedCall(nil)
	for _, b := range message.Content {
		reasoning, answer = reasoning+b.Thinking, answer+b.Text
		if b.Type == "tool_use" {
			calls = append(calls, recordedCall{b.Name, sameObject(t, b.Input), given(b.ID)})
		}
	}
	return seen(reasoning, answer, calls)
}

// TestRecordedAnswers plays the texts of every family through all doors.
func TestRecordedAnswers(t *testing.T) {
	s := recordedServer(t)
	nested, flat := recordedTools(t)
	for _, r := range readRecorded(t) {
		want := seen(r.Reasoning, r.Answer, r.Calls)
		ask := map[string]any{"messages": []map[string]string{{"role": "user", "content": r.Name}}}
		input := map[string]any{"input": r.Name}
		if !r.NoTools {
			ask["tools"], input["tools"] = nested, flat
		}
		got, finish := askChat(t, s.URL, ask)
		if got != want {
			t.Errorf("%s, chat:\n got %s\nwant %s", r.Name, got, want)
		}
		if finish == "tool_calls" != (len(r.Calls) > 0) {
			t.Errorf("%s: finish_reason %s", r.Name, finish)
		}
		if got := askResponses(t, s.URL, input); got != want {
			t.Errorf("%s, responses:\n got %s\nwant %s", r.Name, got, want)
		}
		own := flat
		if r.NoTools {
			own = nil
		}
		var compact []recordedCall // arguments are an object here, not its text
		for _, c := range r.Calls {
			compact = append(compact, recordedCall{c.Name, sameObject(t, []byte(c.Arguments)), c.ID})
		}
		if got, want := askMessages(t, s.URL, r.Name, own), seen(r.Reasoning, r.Answer, compact); got != want {
			t.Errorf("%s, messages:\n got %s\nwant %s", r.Name, got, want)
		}
	}
}

// TestClientsOnRecorded runs a program against the recorded answers: bench/clients/run.sh gives its
// command line in CLIENTS_OF_RECORDED, and in CLIENTS_REAL_URL a server with a model.
func TestClientsOnRecorded(t *testing.T) {
	line := os.Getenv("CLIENTS_OF_RECORDED")
	if line == "" {
		t.Skip("make clients runs it")
	}
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir = "../../bench/clients"
	answers, err := filepath.Abs(answersFile)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "KRATER_URL="+recordedServer(t).URL, "KRATER_ANSWERS="+answers, "KRATER_REAL_URL="+os.Getenv("CLIENTS_REAL_URL"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}
