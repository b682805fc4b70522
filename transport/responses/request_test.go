package responses

import (
	"fmt"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/api"
)

var info = engine.Info{
	ID: "test-model", Context: 256, Vocab: 258,
	Defaults: engine.Sampling{Temperature: 0.7, TopP: 0.9, TopK: 40, RepetitionPenalty: 1},
}

func planOf(t *testing.T, payload string) (*plan, *api.Error) {
	t.Helper()
	var b body
	if err := api.Decode([]byte(payload), &b); err != nil {
		return nil, err
	}
	p, err := newPlan(&b, info)
	if err == nil {
		p.continueFrom(nil)
	}
	return p, err
}

// refusals are requests that are refused, and the field and code that say so.
var refusals = []struct{ payload, param, code string }{
	{`{"input":"x","foo":1}`, "foo", "unknown_parameter"},
	{`{"input":"x","stream_id":"a"}`, "stream_id", "unknown_parameter"},
	{`{"input":"x","type":"response.create"}`, "type", "unknown_parameter"},
	{`{"input":7}`, "input", "invalid_type"},
	{`{"input":null}`, "input", "missing_required_parameter"},
	{`{"input":[]}`, "input", "invalid_value"},
	{`{"input":[7]}`, "input[0]", "invalid_type"},
	{`{"input":[{"role":"user"}]}`, "input[0].content", "missing_required_parameter"},
	{`{"input":[{"content":"x"}]}`, "input[0].role", "missing_required_parameter"},
	{`{"input":[{"role":"tool","content":"x"}]}`, "input[0].role", "invalid_value"},
	{`{"input":[{"role":"user","content":[]}]}`, "input[0].content", "invalid_value"},
	{`{"input":[{"role":"user","content":5}]}`, "input[0].content", "invalid_type"},
	{`{"input":[{"role":"user","content":"x","name":"n"}]}`, "input[0].name", "unknown_parameter"},
	{`{"input":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, "input[1].content[0].type", "unsupported_parameter"},
	{`{"input":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`, "input[0].content[0].type", "unsupported_parameter"},
	{`{"input":[{"role":"user","content":[{"type":"input_text"}]}]}`, "input[0].content[0].text", "missing_required_parameter"},
	{`{"input":[{"role":"user","content":[{"text":"x"}]}]}`, "input[0].content[0].type", "missing_required_parameter"},
	{`{"input":[{"type":"function_call","name":"f","arguments":"{}"}]}`, "input[0].call_id", "missing_required_parameter"},
	{`{"input":[{"type":"function_call","call_id":"c","name":"","arguments":"{}"}]}`, "input[0].name", "invalid_value"},
	{`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]}`, "input[0].arguments", "invalid_type"},
	{`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"[1]"}]}`, "input[0].arguments", "invalid_value"},
	{`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}","x":1}]}`, "input[0].x", "unknown_parameter"},
	{`{"input":[{"type":"function_call_output","output":"x"}]}`, "input[0].call_id", "missing_required_parameter"},
	{`{"input":[{"type":"function_call_output","call_id":"c"}]}`, "input[0].output", "missing_required_parameter"},
	{`{"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]}]}`, "input[0].output[0].type", "unsupported_parameter"},
	{`{"input":[{"type":"reasoning","summary":[],"content":[{"type":"text","text":"a"}]}]}`, "input[0].content[0].type", "unsupported_parameter"},
	{`{"input":[{"type":"custom_tool_call","call_id":"c"}]}`, "input[0].type", "unsupported_parameter"},
	{`{"input":[{"type":"item_reference","id":"x"}]}`, "input[0].type", "unsupported_parameter"},
	{`{"input":[` + strings.Repeat(`0,`, maxItems) + `0]}`, "input", "invalid_value"},
	{`{"input":"x","model":"other"}`, "model", "model_not_found"},
	{`{"input":"x","max_output_tokens":0}`, "max_output_tokens", "invalid_value"},
	{`{"input":"x","max_output_tokens":1.5}`, "max_output_tokens", "invalid_type"},
	{`{"input":"x","temperature":3}`, "temperature", "invalid_value"},
	{`{"input":"x","top_logprobs":21}`, "top_logprobs", "invalid_value"},
	{`{"input":"x","include":["everything"]}`, "include[0]", "invalid_value"},
	{`{"input":"x","include":"message.output_text.logprobs"}`, "include", "invalid_type"},
	{`{"input":"x","include":[1]}`, "include[0]", "invalid_type"},
	{`{"input":"x","tools":[{"type":"function"}]}`, "tools[0].name", "missing_required_parameter"},
	{`{"input":"x","tools":[{"type":"function","name":"a b"}]}`, "tools[0].name", "invalid_value"},
	{`{"input":"x","tools":[{"type":"function","name":"a","parameters":[]}]}`, "tools[0].parameters", "invalid_type"},
	{`{"input":"x","tools":[{"type":"function","name":"a","paramters":{}}]}`, "tools[0].paramters", "unknown_parameter"},
	{`{"input":"x","tools":[{"type":"file_search"}],"tool_choice":"auto"}`, "tools[0].type", "unsupported_parameter"},
	{`{"input":"x","tools":[{"type":"namespace","tools":[]}]}`, "tools[0].name", "missing_required_parameter"},
	{`{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"m","tools":[]}]}]}`, "tools[0].tools[0].type", "unsupported_parameter"},
	{`{"input":[{"type":"function_call","call_id":"c","name":"f","namespace":"","arguments":"{}"}]}`, "input[0].namespace", "invalid_value"},
	{`{"input":"x","tools":{}}`, "tools", "invalid_type"},
	{`{"input":"x","tool_choice":"required"}`, "tool_choice", "invalid_value"},
	{`{"input":"x","tool_choice":{"type":"function","name":"f"}}`, "tool_choice", "invalid_value"},
	{`{"input":"x","text":{"format":{"type":"xml"}}}`, "text.format", "unsupported_parameter"},
	{`{"input":"x","text":{"format":{"type":"json_schema","name":"n"}}}`, "text.format.schema", "missing_required_parameter"},
	{`{"input":"x","text":{"format":{"type":"text","x":1}}}`, "text.format.x", "unknown_parameter"},
	{`{"input":"x","text":{"verbosity":"low"}}`, "text.verbosity", "unsupported_parameter"},
	{`{"input":"x","text":{"style":"x"}}`, "text.style", "unknown_parameter"},
	{`{"input":"x","reasoning":{"effort":"lots"}}`, "reasoning_effort", "invalid_value"},
	{`{"input":"x","reasoning":{"effort":"low"},"reasoning_effort":"low"}`, "reasoning.effort", "invalid_value"},
	{`{"input":"x","reasoning":{"summary":"long"}}`, "reasoning.summary", "invalid_value"},
	{`{"input":"x","reasoning":{"depth":1}}`, "reasoning.depth", "unknown_parameter"},
	{`{"input":"x","truncation":"head"}`, "truncation", "invalid_value"},
	{`{"input":"x","background":true,"store":false}`, "background", "invalid_value"},
	{`{"input":"x","resume_grace_s":301}`, "resume_grace_s", "invalid_value"},
	{`{"input":"x","resume_grace_s":-1}`, "resume_grace_s", "invalid_value"},
	{`{"input":"x","stream_options":{"include_usage":true}}`, "stream_options.include_usage", "unknown_parameter"},
	{`{"input":"x","metadata":{"a":1}}`, "metadata.a", "invalid_type"},
	{`{"input":"x","client_metadata":{"a":1}}`, "client_metadata.a", "invalid_type"},
	{`{"input":"x","client_metadata":"a"}`, "client_metadata", "invalid_type"},
	{`{"input":"x","client_metadata":{"a":"` + strings.Repeat("x", 1<<16) + `"}}`, "client_metadata", "invalid_value"},
	{`{"input":"x","metadata":{"a":"` + strings.Repeat("x", 513) + `"}}`, "metadata", "invalid_value"},
	{`{"input":"x","prompt":{"id":"p"}}`, "prompt", "unsupported_parameter"},
	{`{"input":"x","max_tool_calls":3}`, "max_tool_calls", "unsupported_parameter"},
	{`{"input":"x","context_management":[{"type":"compaction"}]}`, "context_management", "unsupported_parameter"},
	{`{"input":"x","continue_final_message":true,"add_generation_prompt":true}`, "continue_final_message", "invalid_value"},
}

func TestRefusals(t *testing.T) {
	for _, c := range refusals {
		_, err := planOf(t, c.payload)
		if err == nil {
			t.Errorf("%.80s is accepted", c.payload)
			continue
		}
		if err.Param != c.param || err.Code != c.code || err.Message == "" {
			t.Errorf("%.80s: %s %s (%s), want %s %s", c.payload, err.Param, err.Code, err.Message, c.param, c.code)
		}
	}
}

// TestAccepted: what says nothing new, or nothing about the answer, passes.
func TestAccepted(t *testing.T) {
	for _, payload := range []string{
		`{"input":""}`,
		`{"input":"x","reasoning":null,"conversation":null,"prompt":null,"moderation":null,"max_tool_calls":null}`,
		`{"input":"x","reasoning":{"effort":null,"summary":null}}`,
		`{"input":"x","tools":[],"tool_choice":"none"}`, `{"input":"x","tools":[{"type":"web_search"}],"tool_choice":"none"}`,
		`{"input":"x","include":["reasoning.encrypted_content","file_search_call.results"]}`,
		`{"input":"x","text":{"format":{"type":"text"},"verbosity":"medium"}}`, `{"input":"x","text":{}}`,
		`{"input":"x","user":"u","safety_identifier":"s","service_tier":"flex","prompt_cache_key":"k","metadata":{}}`,
		`{"input":"x","stream_options":{"include_obfuscation":false},"truncation":"auto","parallel_tool_calls":true}`,
		`{"input":"x","top_k":5,"min_p":0.1,"repetition_penalty":1.1,"ignore_eos":true,"min_tokens":2,"stop_token_ids":[1],"include_stop_str_in_output":true,"skip_special_tokens":false,"priority":3,"chat_template_kwargs":{"a":1},"stop":["x"],"seed":1}`,
		`{"generate":false}`, `{"generate":false,"tools":[{"type":"function"}]}`,
		`{"previous_response_id":"resp_x"}`,
	} {
		if _, err := planOf(t, payload); err != nil {
			t.Errorf("%s: %s: %s", payload, err.Param, err.Message)
		}
	}
}

func TestRequestReachesTheEngine(t *testing.T) {
	p, err := planOf(t, `{
		"instructions":"Be brief.", "max_output_tokens":9, "temperature":0, "top_k":3, "seed":7, "stop":"end",
		"top_logprobs":2, "priority":1, "min_tokens":2, "ignore_eos":true, "chat_template_kwargs":{"b":1,"a":2},
		"input":[{"type":"message","role":"developer","content":"rules","id":"msg_1","status":"completed"},
		{"role":"user","content":[{"type":"input_text","text":"one "},{"type":"input_text","text":"two"}]},
		{"type":"message","role":"assistant","id":"msg_2","status":"completed","content":[{"type":"output_text","text":"three","annotations":[],"logprobs":[]}]},
		{"role":"user","content":"<\"four\">\u2028"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"role":"system","content":"Be brief."},{"role":"developer","content":"rules"},` +
		`{"role":"user","content":[{"type":"text","text":"one "},{"type":"text","text":"two"}]},` +
		`{"role":"assistant","content":"three"},{"role":"user","content":"<\"four\">\u2028"}]`
	req := p.req
	if got := string(req.Prompt.Chat.Messages); got != want {
		t.Errorf("messages\n %s, want\n %s", got, want)
	}
	if got := string(req.Prompt.Chat.Kwargs); got != `{"b":1,"a":2}` {
		t.Errorf("kwargs %s", got)
	}
	got := fmt.Sprint(req.MaxTokens, req.MinTokens, req.Stop, req.IgnoreEOS, req.Logprobs, req.Priority,
		req.Sampling.Temperature, req.Sampling.TopP, req.Sampling.TopK, *req.Sampling.Seed)
	if got != "9 2 [end] true 2 1 0 0.9 3 7" {
		t.Errorf("the request is %s", got)
	}
	if p.echo.Temperature != 0 || p.echo.TopP != 0.9 || *p.echo.MaxOutputTokens != 9 || p.echo.TopLogprobs != 2 {
		t.Errorf("the echo is %s", api.Marshal(p.echo))
	}
}

// TestTruncation: auto would have to drop items from an over-long prompt, so there, and only there,
// it is refused by name.
func TestTruncation(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.object("POST", "/v1/responses", `{"input":"short","truncation":"auto"}`)
		long := `{"truncation":"%s","input":"` + strings.Repeat("x", 300) + `"}`
		status, code, param, message := r.refusal("POST", "/v1/responses", fmt.Sprintf(long, "auto"))
		if status != 400 || code != "context_length_exceeded" || param != "truncation" || !strings.Contains(message, "256") {
			t.Errorf("auto: %d %s %s %s", status, code, param, message)
		}
		if _, code, param, _ := r.refusal("POST", "/v1/responses", fmt.Sprintf(long, "disabled")); code != "context_length_exceeded" || param != "input" {
			t.Errorf("disabled: %s %s", code, param)
		}
	})
}

// TestContinueFinalMessage: the answer belongs to the message it goes on with.
func TestContinueFinalMessage(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		o := r.object("POST", "/v1/responses", `{"continue_final_message":true,"input":[{"role":"user","content":"q"},{"role":"assistant","content":"So: "}]}`)
		r.object("POST", "/v1/responses", `{"input":"next","previous_response_id":"`+o.ID+`"}`)
		if got := r.messages(1); !strings.Contains(got, `{"role":"assistant","content":"So: Hello world!"}`) {
			t.Errorf("the engine got %s", got)
		}
	})
}
