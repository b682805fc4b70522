package api

import (
	"fmt"
	"strings"
	"testing"

	"krater/actors/engine"
)

var testInfo = engine.Info{
	ID: "m", Context: 64, Vocab: 100,
	Defaults: engine.Sampling{Temperature: 0.5, TopP: 0.9, TopK: 40, RepetitionPenalty: 1},
}

const hello = `"messages":[{"role":"user","content":"hi"}]`

func planChat(t *testing.T, body string) (*Plan, *Error) {
	t.Helper()
	var r ChatRequest
	if err := Decode([]byte(body), &r); err != nil {
		return nil, err
	}
	if err := CheckModel(r.Model, testInfo); err != nil {
		return nil, err
	}
	return r.Plan(testInfo)
}

func planText(t *testing.T, body string) (*Plan, *Error) {
	t.Helper()
	var r CompletionRequest
	if err := Decode([]byte(body), &r); err != nil {
		return nil, err
	}
	return r.Plan(testInfo)
}

var chatRefusals = []struct{ fields, param, code string }{
	{`"temperature":2.1`, "temperature", CodeInvalidValue},
	{`"temperature":-0.1`, "temperature", CodeInvalidValue},
	{`"top_p":0`, "top_p", CodeInvalidValue},
	{`"top_p":1.01`, "top_p", CodeInvalidValue},
	{`"top_k":-2`, "top_k", CodeInvalidValue},
	{`"min_p":-1`, "min_p", CodeInvalidValue},
	{`"min_p":1.5`, "min_p", CodeInvalidValue},
	{`"repetition_penalty":0`, "repetition_penalty", CodeInvalidValue},
	{`"repetition_penalty":11`, "repetition_penalty", CodeInvalidValue},
	{`"presence_penalty":2.5`, "presence_penalty", CodeInvalidValue},
	{`"frequency_penalty":-2.5`, "frequency_penalty", CodeInvalidValue},
	{`"logit_bias":{"100":1}`, "logit_bias", CodeInvalidValue},
	{`"stop":["a",""]`, "stop", CodeInvalidValue},
	{`"stop":"` + strings.Repeat("x", MaxStopBytes+1) + `"`, "stop", CodeInvalidValue},
	{`"stop_token_ids":[100]`, "stop_token_ids", CodeInvalidValue},
	{`"min_tokens":-1`, "min_tokens", CodeInvalidValue},
	{`"min_tokens":9,"max_tokens":8`, "min_tokens", CodeInvalidValue},
	{`"priority":1001`, "priority", CodeInvalidValue},
	{`"max_tokens":0`, "max_tokens", CodeInvalidValue},
	{`"max_tokens":-5`, "max_tokens", CodeInvalidValue},
	{`"max_completion_tokens":0`, "max_completion_tokens", CodeInvalidValue},
	{`"max_tokens":3,"max_completion_tokens":4`, "max_tokens", CodeInvalidValue},
	{`"n":0`, "n", CodeInvalidValue},
	{`"n":129`, "n", CodeInvalidValue},
	{`"top_logprobs":3`, "top_logprobs", CodeInvalidValue},
	{`"logprobs":true,"top_logprobs":21`, "top_logprobs", CodeInvalidValue},
	{`"logprobs":2`, "logprobs", CodeInvalidType},
	{`"stream":true,"stream_options":{"include_use":true}`, "stream_options.include_use", CodeUnknownField},
	{`"metadata":5`, "metadata", CodeInvalidType},
	{`"user":5`, "user", CodeInvalidType},
	{`"response_format":{"type":"xml"}`, "response_format", CodeUnsupported},
	{`"response_format":{"type":"json_schema"}`, "response_format.schema", CodeMissing},
	{`"response_format":{"type":"json_schema","json_schema":{"name":"x","sch":{}}}`, "response_format.json_schema.sch", CodeUnknownField},
	{`"response_format":{"type":"json_object"},"guided_regex":"a"`, "guided_regex", CodeInvalidValue},
	{`"structured_outputs":{"regex":"a","choice":["b"]}`, "structured_outputs.regex", CodeInvalidValue},
	{`"structured_outputs":{}`, "structured_outputs", CodeMissing},
	{`"structured_outputs":{"structural_tag":"x"}`, "structured_outputs.structural_tag", CodeUnknownField},
	{`"guided_choice":[]`, "guided_choice", CodeInvalidValue},
	{`"guided_choice":[1]`, "guided_choice[0]", CodeInvalidType},
	{`"response_format":"text"`, "response_format", CodeInvalidType},
	{`"response_format":{"type":"text","schema":{}}`, "response_format.schema", CodeUnknownField},
	{`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"some"`, "tool_choice", CodeInvalidValue},
	{`"tool_choice":1`, "tool_choice", CodeInvalidType},
	{`"tool_choice":"required"`, "tool_choice", CodeInvalidValue},
	{`"tool_choice":{"type":"function","function":{"name":"f"}}`, "tool_choice", CodeInvalidValue},
	{`"tool_choice":{"type":"function"}`, "tool_choice.function.name", CodeMissing},
	{`"tool_choice":{"type":"mcp","name":"f"}`, "tool_choice.type", CodeUnsupported},
	{`"tool_choice":{"type":"allowed_tools","mode":"some","tools":[]}`, "tool_choice.mode", CodeInvalidValue},
	{`"tools":[{"type":"web_search"}],"tool_choice":"none"`, "tools[0].type", CodeUnsupported},
	{`"tools":[{"type":"function","function":{"name":"f g"}}],"tool_choice":"none"`, "tools[0].function.name", CodeInvalidValue},
	{`"tools":[{"type":"function","function":{"name":"f","parameters":[]}}],"tool_choice":"none"`, "tools[0].function.parameters", CodeInvalidType},
	{`"tools":[{"type":"function","function":{"name":"f","params":{}}}],"tool_choice":"none"`, "tools[0].function.params", CodeUnknownField},
	{`"reasoning_effort":"lots"`, "reasoning_effort", CodeInvalidValue},
	{`"modalities":["text","audio"]`, "modalities", CodeUnsupported},
	{`"audio":{"voice":"x"}`, "audio", CodeUnsupported},
	{`"prediction":{}`, "prediction", CodeUnsupported},
	{`"verbosity":"low"`, "verbosity", CodeUnsupported},
	{`"web_search_options":{}`, "web_search_options", CodeUnsupported},
	{`"functions":[]`, "functions", CodeUnsupported},
	{`"function_call":"auto"`, "function_call", CodeUnsupported},
	{`"guided_json":1`, "guided_json", CodeInvalidType},
	{`"repetition_penalty":1e-300`, "repetition_penalty", CodeInvalidValue},
	{`"thinking":{"type":"sometimes"}`, "thinking.type", CodeInvalidValue},
	{`"thinking":{}`, "thinking.type", CodeMissing},
	{`"thinking":{"type":"enabled","budget_tokens":9},"separate_reasoning":false`, "separate_reasoning", CodeInvalidValue},
	{`"thinking":{"type":"enabled","budget_tokens":0}`, "thinking.budget_tokens", CodeInvalidValue},
	{`"enable_thinking":false,"chat_template_kwargs":{"enable_thinking":true}`, "enable_thinking", CodeInvalidValue},
	{`"stream_options":{"continuous_usage_stats":1}`, "stream_options.continuous_usage_stats", CodeInvalidType},
	{`"chat_template_kwargs":[]`, "chat_template_kwargs", CodeInvalidType},
	{`"continue_final_message":true,"add_generation_prompt":true`, "continue_final_message", CodeInvalidValue},
	{`"model":"other"`, "model", CodeModelNotFound},
	{`"model":""`, "model", CodeModelNotFound},
}

func TestChatRefusals(t *testing.T) {
	for _, c := range chatRefusals {
		_, err := planChat(t, "{"+hello+","+c.fields+"}")
		if err == nil {
			t.Errorf("%s: accepted", c.fields)
			continue
		}
		if err.Param != c.param || err.Code != c.code {
			t.Errorf("%s: param %q code %q (%s), want %q %q", c.fields, err.Param, err.Code, err.Message, c.param, c.code)
		}
		if name, _, _ := strings.Cut(c.param, "["); !strings.Contains(err.Message, name) {
			t.Errorf("%s: message %q does not name the field", c.fields, err.Message)
		}
	}
}

func TestMessagesRefused(t *testing.T) {
	for _, c := range []struct{ messages, param string }{
		{`null`, "messages"},
		{`[]`, "messages"},
		{`{}`, "messages"},
		{`"hi"`, "messages"},
		{`["hi"]`, "messages[0]"},
		{`[{}]`, "messages[0].role"},
		{`[{"role":"user"}]`, "messages[0].content"},
		{`[{"role":"user","content":null}]`, "messages[0].content"},
		{`[{"role":"user","content":5}]`, "messages[0].content"},
		{`[{"role":"user","content":{}}]`, "messages[0].content"},
		{`[{"role":"user","content":[]}]`, "messages[0].content"},
		{`[{"role":"user","content":["a"]}]`, "messages[0].content[0].type"},
		{`[{"role":"user","content":[{"type":"text"}]}]`, "messages[0].content[0].text"},
		{`[{"role":"user","content":[{"type":"text","text":5}]}]`, "messages[0].content[0].text"},
		{`[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]`, "messages[0].content[0].x"},
		{`[{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]`, "messages[1].content[0].type"},
		{`[{"role":"User","content":"a"}]`, "messages[0].role"},
		{`[{"role":"function","content":"a"}]`, "messages[0].role"},
		{`[{"role":5,"content":"a"}]`, "messages[0].role"},
		{`[{"role":"user","content":"a","weight":1}]`, "messages[0].weight"},
		{`[{"role":"user","content":"a","tool_calls":[]}]`, "messages[0].tool_calls"},
		{`[{"role":"assistant"}]`, "messages[0].content"},
		{`[{"role":"assistant","tool_calls":[]}]`, "messages[0].content"},
		{`[{"role":"assistant","tool_calls":{}}]`, "messages[0].tool_calls"},
		{`[{"role":"assistant","tool_calls":[{"id":"1","type":"function"}]}]`, "messages[0].tool_calls[0].function"},
		{`[{"role":"assistant","tool_calls":[{"id":"1","type":"custom","function":{"name":"f","arguments":"{}"}}]}]`, "messages[0].tool_calls[0].type"},
		{`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"no"}}]}]`, "messages[0].tool_calls[0].function.arguments"},
		{`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}]`, "messages[0].tool_calls[0].function.arguments"},
		{`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1,\"a\":2}"}}]}]`, "messages[0].tool_calls[0].function.arguments"},
		{`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]`, "messages[0].tool_calls[0].function.arguments"},
		{`[{"role":"assistant","content":"a","function_call":{"name":"f"}}]`, "messages[0].function_call"},
		{`[{"role":"assistant","content":"a","audio":{"id":"1"}}]`, "messages[0].audio"},
		{"[" + strings.Repeat(`{"role":"user","content":""},`, MaxMessages) + `{"role":"user","content":""}]`, "messages"},
	} {
		_, err := planChat(t, `{"messages":`+c.messages+`}`)
		if err == nil {
			t.Errorf("%.200s: accepted", c.messages)
			continue
		}
		if err.Param != c.param || err.Status != 400 {
			t.Errorf("%.200s: %d param %q (%s), want %q", c.messages, err.Status, err.Param, err.Message, c.param)
		}
	}
	if _, err := planChat(t, `{}`); err == nil || err.Param != "messages" || err.Code != CodeMissing {
		t.Errorf("no messages: %v", err)
	}
}

func TestMessagesAccepted(t *testing.T) {
	for _, messages := range []string{
		`[{"role":"system","content":""},{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"name":"n"}]`,
		`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","index":0,"function":{"name":"f","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]`,
		`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2}}}]}]`,
		`[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}},{"id":"2","type":"function","function":{"name":"f","arguments":" "}}]}]`,
		`[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"prompt_cache_breakpoint":{"mode":"explicit"}}],"cache_control":{}}]`,
		`[{"role":"assistant","content":"a","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":null,"reasoning_content":"r"}]`,
	} {
		plan, err := planChat(t, `{"messages":`+messages+`}`)
		if err != nil {
			t.Errorf("%s: %s", messages, err.Message)
			continue
		}
		if got := string(plan.Requests[0].Prompt.Chat.Messages); got != messages {
			t.Errorf("the messages changed:\n%s\n%s", messages, got)
		}
	}
}

func TestChatDefaults(t *testing.T) {
	plan, err := planChat(t, "{"+hello+"}")
	if err != nil {
		t.Fatal(err)
	}
	r := plan.Requests[0]
	if len(plan.Requests) != 1 || plan.Stream || plan.Usage || plan.Echo {
		t.Errorf("%+v", plan)
	}
	if s := r.Sampling; s.Temperature != 0.5 || s.TopP != 0.9 || s.TopK != 40 || s.Seed != nil || s.LogitBias != nil {
		t.Errorf("the model's defaults are lost: %+v", s)
	}
	if r.MaxTokens != 0 || r.Logprobs != -1 || r.KeepSpecial || r.IgnoreEOS || r.Stop != nil {
		t.Errorf("%+v", r)
	}
}

func TestChatFields(t *testing.T) {
	plan, err := planChat(t, `{`+hello+`,"model":"m","temperature":0,"top_p":0.1,"top_k":-1,"min_p":0.2,
		"repetition_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"99":-100},"seed":-1,
		"stop":["a","b"],"min_tokens":2,"stop_token_ids":[7],"include_stop_str_in_output":true,"ignore_eos":true,
		"skip_special_tokens":false,"priority":-3,"add_generation_prompt":false,"chat_template_kwargs":{"b":1,"a":2},
		"max_completion_tokens":9,"max_tokens":9,"n":3,"logprobs":true,"top_logprobs":5,"stream":true,
		"stream_options":{"include_usage":true,"include_obfuscation":false},
		"user":"u","metadata":{"anything":{"goes":1}},"store":true,"service_tier":"auto","safety_identifier":"s","prompt_cache_key":"k",
		"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1,"a":2},"strict":true}}],"tool_choice":"none",
		"parallel_tool_calls":true,"response_format":{"type":"text"},"reasoning_effort":null,"modalities":[ "text" ],
		"audio":null,"prediction":null,"functions":null,"function_call":null,"verbosity":null,"web_search_options":null}`)
	if err != nil {
		t.Fatal(err)
	}
	if !plan.Stream || !plan.Usage || plan.Choices != 3 || len(plan.Requests) != 3 {
		t.Fatalf("%+v", plan)
	}
	for i, r := range plan.Requests {
		if *r.Sampling.Seed != ^uint64(0)+uint64(i) {
			t.Errorf("choice %d has seed %d", i, *r.Sampling.Seed)
		}
	}
	r := plan.Requests[0]
	s := r.Sampling
	if s.Temperature != 0 || s.TopP != 0.1 || s.TopK != 0 || s.MinP != 0.2 || s.RepetitionPenalty != 1.1 ||
		s.PresencePenalty != -2 || s.FrequencyPenalty != 2 || s.LogitBias[99] != -100 {
		t.Errorf("%+v", s)
	}
	if len(r.Stop) != 2 || r.MinTokens != 2 || r.StopIDs[0] != 7 || !r.IncludeStop || !r.IgnoreEOS || !r.KeepSpecial ||
		r.Priority != -3 || r.MaxTokens != 9 || r.Logprobs != 5 {
		t.Errorf("%+v", r)
	}
	c := r.Prompt.Chat
	if !c.NoGenerationPrompt || string(c.Kwargs) != `{"b":1,"a":2}` || !strings.Contains(string(c.Tools), `{"z":1,"a":2}`) {
		t.Errorf("%+v", c)
	}
}

func TestCompletionRefusals(t *testing.T) {
	for _, c := range []struct{ body, param string }{
		{`{}`, "prompt"},
		{`{"prompt":null}`, "prompt"},
		{`{"prompt":[]}`, "prompt"},
		{`{"prompt":5}`, "prompt"},
		{`{"prompt":{}}`, "prompt"},
		{`{"prompt":["a",1]}`, "prompt"},
		{`{"prompt":[1,"a"]}`, "prompt"},
		{`{"prompt":[[1],2]}`, "prompt"},
		{`{"prompt":[[]]}`, "prompt"},
		{`{"prompt":[true]}`, "prompt"},
		{`{"prompt":[1.5]}`, "prompt"},
		{`{"prompt":[100]}`, "prompt"},
		{`{"prompt":[[1],[-1]]}`, "prompt"},
		{`{"prompt":"a","suffix":"b"}`, "suffix"},
		{`{"prompt":"a","best_of":2,"stream":true}`, "best_of"},
		{`{"prompt":"a","best_of":0}`, "best_of"},
		{`{"prompt":"a","best_of":129}`, "best_of"},
		{`{"prompt":["a","b"],"best_of":65}`, "best_of"},
		{`{"prompt":"a","n":2,"best_of":1}`, "best_of"},
		{`{"prompt":"a","echo":true,"logprobs":1,"n":2,"stream":true}`, "echo"},
		{`{"prompt":"a","prompt_logprobs":21}`, "prompt_logprobs"},
		{`{"prompt":"a","prompt_logprobs":-1}`, "prompt_logprobs"},
		{`{"prompt":"a","prompt_logprobs":1,"stream":true}`, "prompt_logprobs"},
		{`{"prompt":"a","logprobs":21}`, "logprobs"},
		{`{"prompt":"a","logprobs":true}`, "logprobs"},
		{`{"prompt":"a","max_tokens":0}`, "max_tokens"},
		{`{"prompt":"a","max_tokens":0,"echo":false}`, "max_tokens"},
		{`{"prompt":"a","max_tokens":-1,"echo":true}`, "max_tokens"},
		{`{"prompt":"a","max_tokens":0,"echo":true,"min_tokens":1}`, "min_tokens"},
		{`{"prompt":["a","b"],"n":65}`, "n"},
		{`{"prompt":"a","messages":[]}`, "messages"},
		{`{"prompt":"a","temperature":3}`, "temperature"},
		{`{"prompt":[` + strings.Repeat(`"a",`, MaxChoices) + `"a"]}`, "prompt"},
	} {
		_, err := planText(t, c.body)
		if err == nil {
			t.Errorf("%.100s: accepted", c.body)
			continue
		}
		if name, _, _ := strings.Cut(err.Param, "["); name != c.param || err.Status != 400 {
			t.Errorf("%.100s: %d param %q (%s)", c.body, err.Status, err.Param, err.Message)
		}
	}
}

func TestCompletionPrompts(t *testing.T) {
	for body, want := range map[string]int{
		`"a"`: 1, `["a","b"]`: 2, `[1,2,3]`: 1, `[[1,2],[3]]`: 2, `""`: 1,
	} {
		plan, err := planText(t, `{"prompt":`+body+`,"n":2,"seed":5,"best_of":3,"logprobs":0,"add_generation_prompt":true,"chat_template_kwargs":{"a":1}}`)
		if err != nil {
			t.Errorf("%s: %s", body, err.Message)
			continue
		}
		if len(plan.Requests) != 3*want || plan.Choices != 2 || plan.Candidates != 3 {
			t.Errorf("%s: %d requests", body, len(plan.Requests))
		}
		if a, b := plan.Requests[0], plan.Requests[1]; *a.Sampling.Seed != 5 || *b.Sampling.Seed != 6 || a.Logprobs != 0 {
			t.Errorf("%s: %+v", body, a)
		}
	}
	plan, _ := planText(t, `{"prompt":[[1,2],[3]]}`)
	if ids := plan.Requests[1].Prompt.IDs; len(ids) != 1 || ids[0] != 3 || plan.Requests[1].Prompt.Text != nil {
		t.Errorf("%+v", plan.Requests[1].Prompt)
	}
}

// TestRawText: special tokens in a text are read unless the client says otherwise, and a request
// for the prompt alone asks for no answer.
func TestRawText(t *testing.T) {
	for fields, want := range map[string]engine.Prompt{
		``:                                    {ParseSpecial: true},
		`,"add_special_tokens":true`:          {ParseSpecial: true},
		`,"add_special_tokens":false`:         {ParseSpecial: true, NoBOS: true},
		`,"parse_special":false`:              {},
		`,"parse_special":null,"n":2`:         {ParseSpecial: true},
		`,"max_tokens":0,"echo":true`:         {ParseSpecial: true},
		`,"max_tokens":0,"prompt_logprobs":0`: {ParseSpecial: true},
	} {
		plan, err := planText(t, `{"prompt":["a"]`+fields+`}`)
		if err != nil {
			t.Errorf("%s: %s", fields, err.Message)
			continue
		}
		for _, r := range plan.Requests {
			if p := r.Prompt; *p.Text != "a" || p.ParseSpecial != want.ParseSpecial || p.NoBOS != want.NoBOS {
				t.Errorf("%s: %+v", fields, p)
			}
			if zero := strings.Contains(fields, "max_tokens"); r.PromptOnly != zero || r.MaxTokens != 0 {
				t.Errorf("%s: prompt only %v, %d tokens", fields, r.PromptOnly, r.MaxTokens)
			}
		}
	}
	plan, err := planText(t, `{"prompt":[[1,2]],"add_special_tokens":true,"parse_special":true}`)
	if err != nil || plan.Requests[0].Prompt.ParseSpecial || len(plan.Requests[0].Prompt.IDs) != 2 {
		t.Errorf("token ids: %+v, %v", plan, err)
	}
}

func TestThinking(t *testing.T) {
	for fields, want := range map[string]string{
		`"enable_thinking":false`: `{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`,
		`"enable_thinking":true,"chat_template_kwargs":{ "b":1, "a":2 }`: `{"enable_thinking":true,"thinking":true,"thinking_mode":"enabled","b":1,"a":2}`,
		`"thinking":{"type":"disabled"},"chat_template_kwargs":{}`:       `{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`,
		`"thinking":{"type":"enabled"}`:                                  `{"enable_thinking":true,"thinking":true,"thinking_mode":"enabled"}`,
		`"thinking":null,"enable_thinking":null`:                         ``,
		`"reasoning_effort":"high"`:                                      `{"enable_thinking":true,"thinking":true,"thinking_mode":"enabled","reasoning_effort":"high"}`,
		`"reasoning_effort":"none"`:                                      `{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`,
		`"reasoning_effort":"low","enable_thinking":false`:               `{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled","reasoning_effort":"low"}`,
		`"reasoning_effort":"low","chat_template_kwargs":{"thinking":false,"enable_thinking":false,"thinking_mode":"x","reasoning_effort":"y"}`: `{"thinking":false,"enable_thinking":false,"thinking_mode":"x","reasoning_effort":"y"}`,
	} {
		plan, err := planChat(t, "{"+hello+","+fields+"}")
		if err != nil || string(plan.Requests[0].Prompt.Chat.Kwargs) != want {
			t.Errorf("%s: %+v, %v, want %s", fields, plan, err, want)
		}
	}
}

func TestToolsOfChat(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"f"}}]`
	for fields, want := range map[string]string{ // tools in the prompt, that may be called, one call only
		tools: "true true false",
		tools + `,"tool_choice":"auto","parallel_tool_calls":false`: "true true true",
		tools + `,"tool_choice":"none"`:                             "true false false",
		`"tools":[]`:                                                "false false false",
		`"stream":true`:                                             "false false false",
		`"separate_reasoning":false`:                                "false nil",
		tools + `,"separate_reasoning":false`:                       "true true false",
	} {
		plan, err := planChat(t, "{"+hello+","+fields+"}")
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		r := plan.Requests[0]
		got := fmt.Sprint(r.Prompt.Chat.Tools != nil)
		if r.Parts == nil {
			got += " nil"
		} else {
			got += fmt.Sprintf(" %t %t", r.Parts.Tools != nil, r.Parts.Single)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", fields, got, want)
		}
	}
}

func TestTokenizeInput(t *testing.T) {
	for _, c := range []struct{ body, param string }{
		{`{}`, "prompt"},
		{`{"prompt":"a",` + hello + `}`, "prompt"},
		{`{` + hello + `,"add_special_tokens":true}`, "add_special_tokens"},
		{`{` + hello + `,"parse_special":true}`, "parse_special"},
		{`{"prompt":"a","tools":[]}`, "tools"},
		{`{"prompt":"a","add_generation_prompt":true}`, "add_generation_prompt"},
		{`{"prompt":"a","max_tokens":1}`, "max_tokens"},
		{`{"messages":[]}`, "messages"},
	} {
		var r TokenizeRequest
		err := Decode([]byte(c.body), &r)
		if err == nil {
			_, err = r.Input()
		}
		if err == nil || err.Param != c.param {
			t.Errorf("%s: %v", c.body, err)
		}
	}
	var r TokenizeRequest
	if err := Decode([]byte(`{"prompt":"a","add_special_tokens":false,"parse_special":true}`), &r); err != nil {
		t.Fatal(err)
	}
	if p, err := r.Input(); err != nil || !p.NoBOS || !p.ParseSpecial || *p.Text != "a" {
		t.Errorf("%+v %v", p, err)
	}
}

func TestDetokenizeIDs(t *testing.T) {
	for _, body := range []string{`{}`, `{"tokens":"a"}`, `{"tokens":[100]}`, `{"tokens":[-1]}`, `{"tokens":[[1]]}`} {
		var r DetokenizeRequest
		err := Decode([]byte(body), &r)
		if err == nil {
			_, err = r.IDs(testInfo)
		}
		if err == nil || !strings.HasPrefix(err.Param, "tokens") {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestSuffix: a prompt of text takes a suffix where the model has tokens for it.
func TestSuffix(t *testing.T) {
	info := testInfo
	info.Infill = true
	plan := func(body string) (*Plan, *Error) {
		var r CompletionRequest
		if err := Decode([]byte(body), &r); err != nil {
			return nil, err
		}
		return r.Plan(info)
	}
	p, err := plan(`{"prompt":["a","b"],"suffix":"c"}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range p.Requests {
		if req.Prompt.Suffix == nil || *req.Prompt.Suffix != "c" || !req.Prompt.ParseSpecial {
			t.Errorf("%+v", req.Prompt)
		}
	}
	if p, err = plan(`{"prompt":"a","suffix":""}`); err != nil || p.Requests[0].Prompt.Suffix != nil {
		t.Errorf("an empty suffix: %v", err)
	}
	for _, bad := range []string{`{"prompt":[1],"suffix":"c"}`, `{"prompt":"a","suffix":"c","echo":true}`, `{"prompt":"a","suffix":"c","prompt_logprobs":0}`} {
		if _, err := plan(bad); err == nil || err.Param != "suffix" {
			t.Errorf("%s: %+v", bad, err)
		}
	}
}

// TestContinuousUsage: the option needs include_usage.
func TestContinuousUsage(t *testing.T) {
	for options, want := range map[string]bool{
		`{"include_usage":true,"continuous_usage_stats":true}`: true, `{"continuous_usage_stats":true}`: false, `{"include_usage":true,"continuous_usage_stats":false}`: false,
	} {
		p, err := planChat(t, `{`+hello+`,"stream":true,"stream_options":`+options+`}`)
		if err != nil || p.Continuous != want {
			t.Errorf("%s: %+v %v", options, p, err)
		}
	}
}
