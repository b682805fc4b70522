package responses

import (
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// TestItemsOfAnAnswer: reasoning, text and calls of one answer are one message of the prompt, and
// results are messages of their own.
func TestItemsOfAnAnswer(t *testing.T) {
	p, err := planOf(t, `{"input":[
		{"role":"user","content":"u"},
		{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"R1"},{"type":"reasoning_text","text":"R2"}],"encrypted_content":null},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"look","annotations":[]}]},
		{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"a\":1}","status":"completed"},
		{"type":"function_call","call_id":"c2","name":"g","arguments":""},
		{"type":"function_call_output","call_id":"c1","output":"one"},
		{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"},{"type":"input_text","text":"2"}]},
		{"type":"function_call","call_id":"c3","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c3","output":"three"}],
		"tools":[{"type":"function","name":"f","description":"d","parameters":{"b":1,"a":2},"strict":true},{"type":"function","name":"g","parameters":null}],"parallel_tool_calls":false}`)
	if err != nil {
		t.Fatal(err)
	}
	p.continueFrom(nil)
	want := strings.Join([]string{
		`[{"role":"user","content":"u"}`,
		`{"role":"assistant","content":"look","reasoning_content":"R1R2","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":""}}]}`,
		`{"role":"tool","content":"one","tool_call_id":"c1"}`,
		`{"role":"tool","content":[{"type":"text","text":"two"},{"type":"text","text":"2"}],"tool_call_id":"c2"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c3","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		`{"role":"tool","content":"three","tool_call_id":"c3"}]`,
	}, ",")
	if got := string(p.req.Prompt.Chat.Messages); got != want {
		t.Errorf("messages\n%s\nwant\n%s", got, want)
	}
	const tools = `[{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2},"strict":true}},{"type":"function","function":{"name":"g"}}]`
	if string(p.req.Prompt.Chat.Tools) != tools || string(p.req.Parts.Tools) != tools || !p.req.Parts.Single {
		t.Errorf("tools %s, %+v", p.req.Prompt.Chat.Tools, p.req.Parts)
	}
}

// TestNoCalls: with tool_choice none the prompt has the functions, and none is called.
func TestNoCalls(t *testing.T) {
	p, err := planOf(t, `{"input":"x","tools":[{"type":"web_search"},{"type":"function","name":"f"}],"tool_choice":"none"}`)
	if err != nil || p.req.Parts.Tools != nil || !strings.Contains(string(p.req.Prompt.Chat.Tools), `"f"`) {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestContinueCalls: a continuation has the calls of the answer before, and adds their results.
func TestContinueCalls(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Steps(callSteps...))
		first := r.object("POST", "/v1/responses", `{"input":"u","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]}`)
		if len(first.Output) != 4 || first.Output[2].CallID == "" || *first.Output[2].Arguments != `{"a":"\u00e9"}` || first.Output[3].CallID != "functions.g:1" {
			t.Fatalf("%+v", first.Output)
		}
		id := first.Output[2].CallID
		r.engine.Play(enginetest.Text("sunny"))
		r.object("POST", "/v1/responses", `{"previous_response_id":"`+first.ID+`","input":[{"type":"function_call_output","call_id":"`+id+`","output":"sun"},{"type":"function_call_output","call_id":"functions.g:1","output":"now"}]}`)
		want := `[{"role":"user","content":"u"},{"role":"assistant","content":"I look.","reasoning_content":"Weather?","tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"f","arguments":"{\"a\":\"\\u00e9\"}"}},{"id":"functions.g:1","type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","content":"sun","tool_call_id":"` + id + `"},{"role":"tool","content":"now","tool_call_id":"functions.g:1"}]`
		if got := r.messages(1); got != want {
			t.Errorf("messages\n%s\nwant\n%s", got, want)
		}
	})
}

// TestNamespaces: a model knows a function of a namespace by both names, and the client gets them
// apart. A search of the web is left out.
func TestNamespaces(t *testing.T) {
	const tools = `"tools":[{"type":"web_search","external_web_access":false},{"type":"namespace","name":"mcp__a__","description":"d","tools":[{"type":"function","name":"f"}]},{"type":"function","name":"f"}]`
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Steps(
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "mcp__a__f", CallID: "1"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: "{}"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "f", CallID: "2"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: "{}"}},
			enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}},
		))
		first := r.object("POST", "/v1/responses", `{"input":"u",`+tools+`}`)
		if o := first.Output; len(o) != 2 || o[0].Name != "f" || o[0].Namespace != "mcp__a__" || o[1].Name != "f" || o[1].Namespace != "" {
			t.Fatalf("%+v", first.Output)
		}
		const want = `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"mcp__a__f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]}`
		for i, body := range []string{
			`{"previous_response_id":"` + first.ID + `","input":[{"type":"function_call_output","call_id":"1","output":"o"},{"type":"function_call_output","call_id":"2","output":"o"}],` + tools + `}`,
			`{"input":[{"role":"user","content":"u"},{"type":"function_call","call_id":"1","name":"f","namespace":"mcp__a__","arguments":"{}"},{"type":"function_call","call_id":"2","name":"f","arguments":"{}"},` +
				`{"type":"function_call_output","call_id":"1","output":"o"},{"type":"function_call_output","call_id":"2","output":"o"}],` + tools + `}`,
		} {
			r.engine.Play(enginetest.Text("x"))
			r.object("POST", "/v1/responses", body)
			if got := r.messages(i + 1); !strings.Contains(got, want) {
				t.Errorf("messages %s", got)
			}
		}
	})
}
