package anthropic

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/api"
)

var info = engine.Info{ID: "m", Context: 100, Vocab: 258, Defaults: engine.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}

func plan(t testing.TB, body string) (*api.Plan, *api.Error) {
	t.Helper()
	var r Request
	if err := api.Decode([]byte(body), &r); err != nil {
		return nil, err
	}
	return r.Plan(info)
}

func request(t *testing.T, body string) *engine.Request {
	t.Helper()
	p, err := plan(t, body)
	if err != nil {
		t.Fatalf("%s: %v (%s)", body, err, err.Param)
	}
	return p.Requests[0]
}

// TestConversation: what a client sends, and the messages of chat completions that it becomes.
func TestConversation(t *testing.T) {
	for _, c := range []struct{ system, messages, want string }{
		{``, `[{"role":"user","content":"a"}]`, `[{"role":"user","content":"a"}]`},
		{`"s"`, `[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]`,
			`[{"role":"system","content":"s"},{"role":"user","content":"a"}]`},
		{`[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"s"},{"type":"text","text":"t","cache_control":{"type":"ephemeral","ttl":"1h"}}]`,
			`[{"role":"user","content":"a"}]`,
			`[{"role":"system","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]},{"role":"user","content":"a"}]`},
		// Consecutive messages of a role are one turn.
		{``, `[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"}]`,
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]`},
		{``, `[{"role":"system","content":"s"},{"role":"user","content":"a"}]`, `[{"role":"system","content":"s"},{"role":"user","content":"a"}]`},
		{``, `[{"role":"user","content":"a"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"x"},{"type":"redacted_thinking","data":"y"},{"type":"text","text":"I look.","citations":null},
				{"type":"tool_use","id":"t1","name":"f","input":{"b":1,"a":"é"},"cache_control":null},{"type":"tool_use","id":"t2","name":"g","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"one"},{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"two"}]},{"type":"text","text":"go on"}]}]`,
			`[{"role":"user","content":"a"},{"role":"assistant","content":"I look.","reasoning_content":"Hm.","tool_calls":[` +
				`{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}},{"id":"t2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","content":"one","tool_call_id":"t1"},{"role":"tool","content":"Error: two","tool_call_id":"t2"},{"role":"user","content":"go on"}]`},
		{``, `[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]`,
			`[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"","tool_call_id":"t"}]`},
	} {
		got, _, err := conversation(jsontext.Value(c.system), jsontext.Value(c.messages))
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\n got %s %v\nwant %s", c.messages, got, err, c.want)
		}
	}
}

func TestRequest(t *testing.T) {
	const hello = `"messages":[{"role":"user","content":"a"}]`
	r := request(t, `{"model":"m","max_tokens":7,`+hello+`,"temperature":0.5,"top_k":3,"top_p":0.25,"stop_sequences":["x","y"],"metadata":{"user_id":"u"},`+
		`"service_tier":"auto","thinking":{"type":"enabled","budget_tokens":1024},"cache_control":{"type":"ephemeral"},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"mcp_servers":[],"seed":3}`)
	if r.MaxTokens != 7 || r.Sampling.Temperature != 0.5 || r.Sampling.TopK != 3 || r.Sampling.TopP != 0.25 || strings.Join(r.Stop, " ") != "x y" || *r.Sampling.Seed != 3 {
		t.Errorf("%+v", r)
	}
	if r.Parts.Budget != 1024 {
		t.Errorf("the budget is %d", r.Parts.Budget)
	}
	if got := string(r.Prompt.Chat.Kwargs); got != `{"enable_thinking":true,"thinking":true,"thinking_mode":"enabled"}` {
		t.Error(got)
	}
	if r := request(t, `{"max_tokens":7,`+hello+`,"thinking":{"type":"adaptive","display":"omitted"}}`); r.Prompt.Chat.Kwargs != nil || r.Parts == nil || r.Parts.Tools != nil {
		t.Errorf("%+v", r)
	}
	if r := request(t, `{"max_tokens":7,`+hello+`,"thinking":{"type":"disabled"}}`); !strings.Contains(string(r.Prompt.Chat.Kwargs), `"thinking":false`) {
		t.Errorf("%+v", r)
	}
	if r := request(t, `{"max_tokens":0,`+hello+`}`); !r.PromptOnly {
		t.Error("max_tokens 0 makes an answer")
	}
	if r := request(t, `{"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"It is"}]}`); !r.Prompt.Chat.ContinueFinalMessage || !r.Prompt.Chat.NoGenerationPrompt {
		t.Error("the last message is not continued")
	}
	const tools = `"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"b":{},"a":{}}},"cache_control":{"type":"ephemeral"},"strict":true},{"type":"custom","name":"g","input_schema":{}}]`
	r = request(t, `{"max_tokens":7,`+hello+`,`+tools+`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}`)
	want := `[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"b":{},"a":{}}},"strict":true}},{"type":"function","function":{"name":"g","parameters":{}}}]`
	if string(r.Prompt.Chat.Tools) != want || string(r.Parts.Tools) != want || !r.Parts.Single {
		t.Errorf("%s", r.Prompt.Chat.Tools)
	}
	if r := request(t, `{"max_tokens":7,`+hello+`,`+tools+`,"tool_choice":{"type":"none"}}`); r.Parts.Tools != nil || r.Prompt.Chat.Tools == nil {
		t.Error("none allows calls")
	}
}

// TestRefusals: each names its field as this API has it.
func TestRefusals(t *testing.T) {
	const hello = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct{ body, param, code string }{
		{`{` + hello + `}`, "max_tokens", api.CodeMissing},
		{`{"max_tokens":-1,` + hello + `}`, "max_tokens", api.CodeInvalidValue},
		{`{"max_tokens":1}`, "messages", api.CodeMissing},
		{`{"max_tokens":1,"messages":[]}`, "messages", api.CodeInvalidValue},
		{`{"max_tokens":1,"messages":[{"role":"system","content":""}]}`, "messages", api.CodeInvalidValue},
		{`{"max_tokens":1,"messages":[{"role":"tool","content":"a"}]}`, "messages[0].role", api.CodeInvalidValue},
		{`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}]}`, "messages[0].content[0].type", api.CodeUnsupported},
		{`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]}`, "messages[0].content[0].type", api.CodeUnsupported},
		{`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}]}`, "messages[0].content[0].type", api.CodeInvalidValue},
		{`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}`, "messages[0].content[0].tool_use_id", api.CodeInvalidValue},
		{`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]}`, "messages[0].content[0].x", api.CodeUnknownField},
		{`{"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}]}`, "messages[1]", api.CodeInvalidValue},
		{`{"max_tokens":1,"system":[{"type":"image"}],` + hello + `}`, "system[0].type", api.CodeUnsupported},
		{`{"max_tokens":1,"temperature":3,` + hello + `}`, "temperature", api.CodeInvalidValue},
		{`{"max_tokens":1,"stop_sequences":["` + strings.Repeat("x", 2000) + `"],` + hello + `}`, "stop", api.CodeInvalidValue},
		{`{"max_tokens":1,"tools":[{"type":"web_search_20250305","name":"web_search"}],` + hello + `}`, "tools[0].type", api.CodeUnsupported},
		{`{"max_tokens":1,"tools":[{"name":"f"}],` + hello + `}`, "tools[0].input_schema", api.CodeMissing},
		{`{"max_tokens":1,"tools":[{"name":"a b","input_schema":{}}],` + hello + `}`, "tools[0].name", api.CodeInvalidValue},
		{`{"max_tokens":1,"tool_choice":{"type":"some"},` + hello + `}`, "tool_choice.type", api.CodeInvalidValue},
		{`{"max_tokens":1,"thinking":{"type":"some"},` + hello + `}`, "thinking.type", api.CodeInvalidValue},
		{`{"max_tokens":1,"thinking":{"type":"enabled","budget_tokens":0},` + hello + `}`, "thinking.budget_tokens", api.CodeInvalidValue},
		{`{"max_tokens":1,"thinking":{"type":"enabled","display":"some"},` + hello + `}`, "thinking.display", api.CodeInvalidValue},
		{`{"max_tokens":1,"output_config":{"effort":"some"},` + hello + `}`, "output_config.effort", api.CodeInvalidValue},
		{`{"max_tokens":1,"output_config":{"format":{"type":"text"}},` + hello + `}`, "output_config.format", api.CodeInvalidValue},
		{`{"max_tokens":1,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},` + hello + `}`, "context_management.edits[0]", api.CodeUnsupported},
		{`{"max_tokens":1,"mcp_servers":[{}],` + hello + `}`, "mcp_servers", api.CodeUnsupported},
		{`{"max_tokens":1,"max_completion_tokens":1,` + hello + `}`, "max_completion_tokens", api.CodeUnknownField},
	} {
		_, err := plan(t, c.body)
		if err == nil || err.Status != 400 || err.Param != c.param || err.Code != c.code {
			t.Errorf("%.200s: %v %+v", c.body, err, err)
		}
	}
}

// TestAnswer: the events of a stream, and the message that they add up to.
func TestAnswer(t *testing.T) {
	tokens := func(p engine.Part, text string) engine.Event {
		return engine.Event{Kind: engine.Tokens, Part: p, Text: text, Usage: engine.Usage{Prompt: 9, Cached: 4}}
	}
	call := tokens(engine.CallPart, "")
	call.Name, call.CallID = "f", "t1"
	done := engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Prompt: 9, Cached: 4, Completion: 8, Reasoning: 2}}
	all := []engine.Event{
		tokens(engine.ReasoningPart, "H"), tokens(engine.ReasoningPart, "m"), tokens(engine.TextPart, ""), tokens(engine.TextPart, "a\n"), tokens(engine.TextPart, "b"),
		call, tokens(engine.ArgumentsPart, `{"x"`), tokens(engine.ArgumentsPart, `:1}`), call, done,
	}
	var got strings.Builder
	stream := NewAnswer("msg_1", "m", func(e Event) { fmt.Fprintf(&got, "%s\n", api.Marshal(e)) })
	whole := NewAnswer("msg_1", "m", nil)
	for i := range all {
		stream.Add(&all[i])
		whole.Add(&all[i])
	}
	sum := sha256.Sum256([]byte("Hm"))
	signature := base64.StdEncoding.EncodeToString(sum[:])
	want := `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0,"output_tokens_details":{"thinking_tokens":0},"service_tier":"standard"}}}
{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}
{"type":"ping"}
{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"H"}}
{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m"}}
{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"` + signature + `"}}
{"type":"content_block_stop","index":0}
{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}
{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a\n"}}
{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}}
{"type":"content_block_stop","index":1}
{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}
{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\""}}
{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":":1}"}}
{"type":"content_block_stop","index":2}
{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}
{"type":"content_block_stop","index":3}
{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":8,"output_tokens_details":{"thinking_tokens":2}}}
{"type":"message_stop"}
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	text := `{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"Hm","signature":"` + signature + `"},{"type":"text","text":"a\nb"},` +
		`{"type":"tool_use","id":"t1","name":"f","input":{"x":1}},{"type":"tool_use","id":"t1","name":"f","input":{}}],"stop_reason":"tool_use","stop_sequence":null,` +
		`"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":8,"output_tokens_details":{"thinking_tokens":2},"service_tier":"standard"}}`
	if got := string(api.Marshal(whole.Message())); got != text {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
	for _, c := range []struct {
		end    engine.Event
		reason string
	}{
		{engine.Event{Kind: engine.Done, Finish: engine.FinishLength}, "max_tokens"},
		{engine.Event{Kind: engine.Done, Finish: engine.FinishStop, StopMatched: "x"}, "stop_sequence"},
		{engine.Event{Kind: engine.Done, Finish: engine.FinishStop}, "end_turn"},
	} {
		a := NewAnswer("", "", nil)
		a.Add(&c.end)
		if m := a.Message(); *m.StopReason != c.reason || (m.StopSequence != nil) != (c.end.StopMatched != "") {
			t.Errorf("%s: %s", c.reason, *m.StopReason)
		}
	}
}

// FuzzRequest: whatever a client sends is refused with a named field or becomes a request of chat
// completions, which accepts its messages again.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`,
		`{"max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"1","name":"f","input":{"a":[1]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"r"}],"is_error":true}]}],"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto"}}`,
		`{"max_tokens":0,"messages":[{"role":"assistant","content":"b"}],"thinking":{"type":"enabled","budget_tokens":9},"output_config":{"effort":"low"},"context_management":{"edits":[]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Request
		err := api.Decode(data, &r)
		if err == nil {
			var p *api.Plan
			if p, err = r.Plan(info); err == nil {
				if refused := api.CheckMessages("messages", p.Requests[0].Prompt.Chat.Messages); refused != nil {
					t.Fatalf("%s: %v", p.Requests[0].Prompt.Chat.Messages, refused)
				}
				var any []map[string]any
				if err := json.Unmarshal(p.Requests[0].Prompt.Chat.Messages, &any); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		if err.Status != 400 || err.Message == "" {
			t.Fatalf("%+v", err)
		}
	})
}
