package ollama

import (
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

var info = engine.Info{ID: "m", Created: time.Unix(1700000000, 0), Context: 100, Vocab: 258, Defaults: engine.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}

func chat(body string) (*api.Plan, *api.Error) {
	var r ChatRequest
	if err := api.Decode([]byte(body), &r); err != nil {
		return nil, err
	}
	return r.Plan(info)
}

func generate(body string) (*api.Plan, *api.Error) {
	var r GenerateRequest
	if err := api.Decode([]byte(body), &r); err != nil {
		return nil, err
	}
	return r.Plan(info)
}

func TestChatRequest(t *testing.T) {
	p, err := chat(`{"model":"m","messages":[{"role":"user","content":"a"}],"keep_alive":"5m","think":true,` +
		`"options":{"temperature":0.5,"top_k":3,"top_p":0.25,"min_p":0.1,"seed":7,"num_predict":9,"num_ctx":64,"stop":["x"],"repeat_penalty":1.5,"num_gpu":1,"num_thread":8}}`)
	if err != nil {
		t.Fatal(err)
	}
	r := p.Requests[0]
	if s := r.Sampling; !p.Stream || s.Temperature != 0.5 || s.TopK != 3 || s.TopP != 0.25 || s.MinP != 0.1 || *s.Seed != 7 || r.MaxTokens != 9 || r.Stop[0] != "x" || s.RepetitionPenalty != 1.5 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(string(r.Prompt.Chat.Kwargs), `"enable_thinking":true`) {
		t.Errorf("%s", r.Prompt.Chat.Kwargs)
	}
	// Calls get ids, and results those of their calls: by name, by order, by id.
	p, err = chat(`{"stream":false,"messages":[{"role":"user","content":"a"},
		{"role":"assistant","content":"","thinking":"Hm","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},{"function":{"index":1,"name":"g","arguments":{}}},{"id":"x","type":"function","function":{"name":"h"}}]},
		{"role":"tool","tool_name":"g","content":"two"},{"role":"tool","content":"one"},{"role":"tool","tool_call_id":"x","content":"three"}],
		"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"options":{"num_predict":-1},"format":""}`)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"role":"user","content":"a"},{"role":"assistant","content":"","reasoning_content":"Hm","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},` +
		`{"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}},{"id":"x","type":"function","function":{"name":"h","arguments":"{}"}}]},` +
		`{"role":"tool","content":"two","tool_call_id":"call_2"},{"role":"tool","content":"one","tool_call_id":"call_1"},{"role":"tool","content":"three","tool_call_id":"x"}]`
	if r := p.Requests[0]; p.Stream || r.MaxTokens != 0 || r.Parts.Tools == nil || string(r.Prompt.Chat.Messages) != want {
		t.Errorf("got\n%s\nwant\n%s", r.Prompt.Chat.Messages, want)
	}
}

func TestGenerateRequest(t *testing.T) {
	p, err := generate(`{"prompt":"a","system":"s"}`)
	if err != nil || string(p.Requests[0].Prompt.Chat.Messages) != `[{"role":"system","content":"s"},{"role":"user","content":"a"}]` {
		t.Errorf("%+v %v", p, err)
	}
	p, err = generate(`{"prompt":"<x>a","raw":true,"options":{"num_predict":3}}`)
	if err != nil || *p.Requests[0].Prompt.Text != "<x>a" || !p.Requests[0].Prompt.ParseSpecial || p.Requests[0].MaxTokens != 3 || !p.Stream {
		t.Errorf("%+v %v", p, err)
	}
}

// TestCapabilities: editors read what the model can do.
func TestCapabilities(t *testing.T) {
	able := info
	able.Infill, able.Reasons = true, true
	if got := strings.Join(NewShow(able).Capabilities, " "); got != "completion tools insert thinking" {
		t.Error(got)
	}
	if got := strings.Join(NewShow(info).Capabilities, " "); got != "completion tools" {
		t.Error(got)
	}
}

func TestRefusals(t *testing.T) {
	const hello = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct{ body, param string }{
		{`{"messages":[{"role":"user","content":"a","images":["x"]}]}`, "messages[0].images"},
		{`{"messages":[{"role":"tool","content":"a"}]}`, "messages[0]"},
		{`{"messages":[{"content":"a"}]}`, "messages[0].role"},
		{`{"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{}}]}]}`, "messages[0].tool_calls[0].function"},
		{`{` + hello + `,"options":{"num_ctx":101}}`, "options.num_ctx"},
		{`{` + hello + `,"options":{"num_predict":0}}`, "options.num_predict"},
		{`{` + hello + `,"options":{"temperature":9}}`, "options.temperature"},
		{`{` + hello + `,"options":{"mirostat":1}}`, "options.mirostat"},
		{`{` + hello + `,"options":{"nonsense":1}}`, "options.nonsense"},
		{`{` + hello + `,"think":3}`, "think"},
		{`{` + hello + `,"think":"some"}`, "think"},
		{`{` + hello + `,"format":3}`, "format"},
		{`{` + hello + `,"x":3}`, "x"},
	} {
		if _, err := chat(c.body); err == nil || err.Status != 400 || err.Param != c.param || !strings.Contains(err.Message, c.param) {
			t.Errorf("%s: %+v", c.body, err)
		}
	}
	for body, param := range map[string]string{
		`{"prompt":"a","images":["x"]}`: "images", `{"prompt":"a","template":"x"}`: "template", `{"prompt":"a","context":[1]}`: "context",
		`{"prompt":"a","raw":true,"system":"x"}`: "system", `{"prompt":"a","raw":true,"format":"json"}`: "format",
	} {
		if _, err := generate(body); err == nil || err.Param != param {
			t.Errorf("%s: %+v", body, err)
		}
	}
}

// TestAnswer: the lines of a stream, and the answer as a whole.
func TestAnswer(t *testing.T) {
	tokens := func(p engine.Part, text string) engine.Event {
		return engine.Event{Kind: engine.Tokens, Part: p, Text: text}
	}
	call := tokens(engine.CallPart, "")
	call.Name, call.CallID = "f", "c1"
	all := []engine.Event{
		{Kind: engine.Queued}, {Kind: engine.Started}, tokens(engine.ReasoningPart, "Hm"), tokens(engine.TextPart, "a"), tokens(engine.TextPart, "b"),
		call, tokens(engine.ArgumentsPart, `{"x"`), tokens(engine.ArgumentsPart, `:1}`), call,
		{Kind: engine.Done, Finish: engine.FinishLength, Usage: engine.Usage{Prompt: 9, Completion: 8}},
	}
	clock := func() func() time.Time {
		at := time.Unix(0, 0)
		return func() time.Time { at = at.Add(time.Millisecond); return at }
	}
	play := func(chat, stream bool) string {
		a := NewAnswer("m", chat, stream, clock())
		var b strings.Builder
		for i := range all {
			for _, line := range a.Add(&all[i]) {
				b.Write(append(api.Marshal(line), '\n'))
			}
		}
		if !stream {
			b.Write(append(api.Marshal(a.Whole()), '\n'))
		}
		text := b.String()
		for {
			i := strings.Index(text, `"created_at":"19`)
			if i < 0 {
				return text
			}
			j := i + strings.Index(text[i:], ",")
			text = text[:i] + text[j+1:]
		}
	}
	want := `{"model":"m","message":{"role":"assistant","content":"","thinking":"Hm"},"done":false}
{"model":"m","message":{"role":"assistant","content":"a"},"done":false}
{"model":"m","message":{"role":"assistant","content":"b"},"done":false}
{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"index":0,"name":"f","arguments":{"x":1}}}]},"done":false}
{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"index":1,"name":"f","arguments":{}}}]},"done":false}
{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"length","total_duration":9000000,"load_duration":1000000,"prompt_eval_count":9,"prompt_eval_duration":1000000,"eval_count":8,"eval_duration":7000000}
`
	if got := play(true, true); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := play(true, false); !strings.HasPrefix(got, `{"model":"m","message":{"role":"assistant","content":"ab","thinking":"Hm","tool_calls":[{"id":"c1","function":{"index":0,"name":"f","arguments":{"x":1}}},{"id":"c1","function":{"index":1,"name":"f","arguments":{}}}]},"done":true,"done_reason":"length",`) {
		t.Error(got)
	}
	if got := play(false, true); !strings.Contains(got, "{\"model\":\"m\",\"response\":\"b\",\"done\":false}\n") || !strings.Contains(got, `"thinking":"Hm"`) {
		t.Error(got)
	}
}

// FuzzRequest: whatever a client sends is refused by a 400 or becomes a request.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},{"role":"tool","tool_name":"f","content":"x"}],"options":{"stop":"a","num_predict":-2}}`,
		`{"prompt":"a","raw":true,"options":{"top_k":1},"think":"low","format":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, try := range []func(string) (*api.Plan, *api.Error){chat, generate} {
			p, err := try(string(data))
			if err != nil && (err.Status != 400 || err.Message == "") || err == nil && len(p.Requests) != 1 {
				t.Fatalf("%+v %+v", p, err)
			}
		}
	})
}
