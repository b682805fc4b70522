package chat

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// rich returns the test's own template: tools, tool calls, reasoning.
func rich(t testing.TB, o Options) *Template {
	t.Helper()
	source, err := os.ReadFile("testdata/tools.jinja")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(string(source), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	userMessage = `{"role":"user","content":"u"}`
	aCall       = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2.50,null]}"}}]}`
	aTool       = `{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}}}`
)

// callsOf is a conversation whose answer has the tool calls s, functionOf one with the function s.
func callsOf(s string) string {
	return `[` + userMessage + `,{"role":"assistant","tool_calls":` + s + `}]`
}

func functionOf(s string) string {
	return callsOf(`[{"id":"c","type":"function","function":` + s + `}]`)
}

// refusedCase is a conversation that is refused, and the parameter that is named.
type refusedCase struct{ name, messages, tools, kwargs, param string }

var refusedCases = []refusedCase{
	{"no messages", ``, "", "", "messages"},
	{"not JSON", `[{"role":`, "", "", "messages"},
	{"trailing bytes", `[` + userMessage + `] x`, "", "", "messages"},
	{"duplicate key", `[{"role":"user","role":"user","content":""}]`, "", "", "messages"},
	{"lone surrogate", `[{"role":"user","content":"\ud800"}]`, "", "", "messages"},
	{"invalid UTF-8", "[{\"role\":\"user\",\"content\":\"\xfe\"}]", "", "", "messages"},
	{"mark bytes", "[{\"role\":\"user\",\"content\":\"\xff\"}]", "", "", "messages"},
	{"too deep", `[{"role":"user","content":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}]`, "", "", "messages"},
	{"not an array", `{}`, "", "", "messages"},
	{"empty", `[]`, "", "", "messages"},
	{"message not an object", `[1]`, "", "", "messages[0]"},
	{"no role", `[{"content":""}]`, "", "", "messages[0].role"},
	{"role not a string", `[{"role":1,"content":""}]`, "", "", "messages[0].role"},
	{"unknown role", `[` + userMessage + `,{"role":"wizard","content":""}]`, "", "", "messages[1].role"},
	{"unknown field", `[{"role":"user","content":"","foo":1}]`, "", "", "messages[0].foo"},
	{"field of another role", `[{"role":"user","content":"","tool_calls":[]}]`, "", "", "messages[0].tool_calls"},
	{"no content", `[{"role":"user"}]`, "", "", "messages[0].content"},
	{"null content", `[{"role":"user","content":null}]`, "", "", "messages[0].content"},
	{"content a number", `[{"role":"user","content":1}]`, "", "", "messages[0].content"},
	{"content an object", `[{"role":"user","content":{}}]`, "", "", "messages[0].content"},
	{"no parts", `[{"role":"user","content":[]}]`, "", "", "messages[0].content"},
	{"part a string", `[{"role":"user","content":["x"]}]`, "", "", "messages[0].content[0]"},
	{"part without type", `[{"role":"user","content":[{"text":"x"}]}]`, "", "", "messages[0].content[0].type"},
	{"part type a number", `[{"role":"user","content":[{"type":1}]}]`, "", "", "messages[0].content[0].type"},
	{"image", `[` + userMessage + `,{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"x"}}]}]`, "", "", "messages[1].content[1].type"},
	{"part without text", `[{"role":"user","content":[{"type":"text"}]}]`, "", "", "messages[0].content[0].text"},
	{"part text null", `[{"role":"user","content":[{"type":"text","text":null}]}]`, "", "", "messages[0].content[0].text"},
	{"part with more", `[{"role":"user","content":[{"type":"text","text":"x","color":{}}]}]`, "", "", "messages[0].content[0].color"},
	{"name not a string", `[{"role":"user","content":"x","name":1}]`, "", "", "messages[0].name"},
	{"reasoning not a string", `[` + userMessage + `,{"role":"assistant","content":"x","reasoning_content":[]}]`, "", "", "messages[1].reasoning_content"},
	{"audio", `[` + userMessage + `,{"role":"assistant","content":"x","audio":{"id":"x"}}]`, "", "", "messages[1].audio"},
	{"function_call", `[` + userMessage + `,{"role":"assistant","content":"x","function_call":{"name":"x"}}]`, "", "", "messages[1].function_call"},

	{"calls not an array", callsOf(`{}`), "", "", "messages[1].tool_calls"},
	{"call not an object", callsOf(`[1]`), "", "", "messages[1].tool_calls[0]"},
	{"call without type", callsOf(`[{"id":"c","function":{"name":"f","arguments":"{}"}}]`), "", "", "messages[1].tool_calls[0].type"},
	{"call of a custom tool", callsOf(`[{"id":"c","type":"custom","custom":{}}]`), "", "", "messages[1].tool_calls[0].type"},
	{"call without id", callsOf(`[{"type":"function","function":{"name":"f","arguments":"{}"}}]`), "", "", "messages[1].tool_calls[0].id"},
	{"call with an empty id", callsOf(`[{"id":"","type":"function","function":{"name":"f","arguments":"{}"}}]`), "", "", "messages[1].tool_calls[0].id"},
	{"call without function", callsOf(`[{"id":"c","type":"function"}]`), "", "", "messages[1].tool_calls[0].function"},
	{"call with more", callsOf(`[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"},"x":1}]`), "", "", "messages[1].tool_calls[0].x"},
	{"function not an object", functionOf(`"f"`), "", "", "messages[1].tool_calls[0].function"},
	{"function without name", functionOf(`{"arguments":"{}"}`), "", "", "messages[1].tool_calls[0].function.name"},
	{"function with a bad name", functionOf(`{"name":"a b","arguments":"{}"}`), "", "", "messages[1].tool_calls[0].function.name"},
	{"no arguments", functionOf(`{"name":"f"}`), "", "", "messages[1].tool_calls[0].function.arguments"},
	{"arguments not JSON", functionOf(`{"name":"f","arguments":"{x"}`), "", "", "messages[1].tool_calls[0].function.arguments"},
	{"arguments a list", functionOf(`{"name":"f","arguments":"[1]"}`), "", "", "messages[1].tool_calls[0].function.arguments"},
	{"arguments null", functionOf(`{"name":"f","arguments":null}`), "", "", "messages[1].tool_calls[0].function.arguments"},
	{"arguments twice the same", functionOf(`{"name":"f","arguments":"{\"a\":1,\"a\":2}"}`), "", "", "messages[1].tool_calls[0].function.arguments"},

	{"tool without id", `[` + userMessage + `,` + aCall + `,{"role":"tool","content":"x"}]`, "", "", "messages[2].tool_call_id"},
	{"tool with another id", `[` + userMessage + `,` + aCall + `,{"role":"tool","content":"x","tool_call_id":"c2"}]`, "", "", "messages[2].tool_call_id"},
	{"tool before its call", `[{"role":"tool","content":"x","tool_call_id":"c1"},` + aCall + `]`, "", "", "messages[0].tool_call_id"},
	{"function without a name", `[` + userMessage + `,{"role":"function","content":"x"}]`, "", "", "messages[1].name"},

	{"tools not JSON", `[` + userMessage + `]`, `[`, "", "tools"},
	{"tools not an array", `[` + userMessage + `]`, `{}`, "", "tools"},
	{"tool not an object", `[` + userMessage + `]`, `["f"]`, "", "tools[0]"},
	{"tool without type", `[` + userMessage + `]`, `[{"function":{"name":"f"}}]`, "", "tools[0].type"},
	{"tool of another type", `[` + userMessage + `]`, `[` + aTool + `,{"type":"web_search"}]`, "", "tools[1].type"},
	{"tool without function", `[` + userMessage + `]`, `[{"type":"function"}]`, "", "tools[0].function"},
	{"flat tool", `[` + userMessage + `]`, `[{"type":"function","name":"f","parameters":{}}]`, "", "tools[0].name"},
	{"tool without name", `[` + userMessage + `]`, `[{"type":"function","function":{}}]`, "", "tools[0].function.name"},
	{"tool name too long", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"` + strings.Repeat("x", 129) + `"}}]`, "", "tools[0].function.name"},
	{"description a number", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"f","description":1}}]`, "", "tools[0].function.description"},
	{"parameters a list", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"f","parameters":[]}}]`, "", "tools[0].function.parameters"},
	{"strict a string", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"f","strict":"yes"}}]`, "", "tools[0].function.strict"},
	{"tool with more", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"f","foo":1}}]`, "", "tools[0].function.foo"},

	{"kwargs not an object", `[` + userMessage + `]`, "", `[]`, "chat_template_kwargs"},
	{"kwargs not JSON", `[` + userMessage + `]`, "", `{`, "chat_template_kwargs"},
	{"kwargs over messages", `[` + userMessage + `]`, "", `{"messages":[]}`, "chat_template_kwargs.messages"},
	{"kwargs over bos_token", `[` + userMessage + `]`, "", `{"bos_token":"x"}`, "chat_template_kwargs.bos_token"},
	{"kwargs over a function", `[` + userMessage + `]`, "", `{"raise_exception":1}`, "chat_template_kwargs.raise_exception"},
	{"kwargs over the runtime", `[` + userMessage + `]`, "", `{"cycler":1}`, "chat_template_kwargs.cycler"},
	{"kwargs no name", `[` + userMessage + `]`, "", `{"a b":1}`, "chat_template_kwargs"},
}

// TestRefused: every fault of a conversation is an error with its place.
func TestRefused(t *testing.T) {
	c := rich(t, Options{})
	large := []refusedCase{
		{"too large", `[{"role":"user","content":"` + strings.Repeat("x", MaxInput) + `"}]`, "", "", "messages"},
		{"too many values", `[{"role":"user","content":[` + strings.Repeat("1,", 1_000_001) + `1]}]`, "", "", "messages"},
	}
	for _, test := range slices.Concat(refusedCases, large) {
		_, err := c.Render(Conversation{Messages: []byte(test.messages), Tools: []byte(test.tools), Kwargs: []byte(test.kwargs)})
		var e *Error
		switch {
		case err == nil:
			t.Errorf("%s: no error", test.name)
		case !errors.As(err, &e) || e.Param != test.param || e.Message == "":
			t.Errorf("%s: %+v, want param %q", test.name, err, test.param)
		}
	}
}

// TestAccepted: what clients send, and the prompt it becomes.
func TestAccepted(t *testing.T) {
	c := rich(t, Options{})
	const user = "<|im_start|>user\nu<|im_end|>\n"
	for _, test := range []struct{ name, messages, tools, kwargs, want string }{
		{"text", `[{"role":"system","content":"s"},` + userMessage + `]`, "", "", "<|im_start|>system\ns<|im_end|>\n" + user},
		{"parts joined", `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "", "", "<|im_start|>user\na\nb<|im_end|>\n"},
		{"what is said of caches goes no further", `[{"role":"user","content":[{"type":"text","text":"u","cache_control":{"type":"ephemeral"},"prompt_cache_breakpoint":{}}],"cache_control":{"ttl":"1h"}}]`, "", "", user},
		{"arguments decoded, keys in order", `[` + userMessage + `,` + aCall + `,{"role":"tool","tool_call_id":"c1","content":"r"}]`, "", "",
			user + "<|im_start|>assistant\n<tool_call>f {\"b\": 1, \"a\": [2.5, null]}</tool_call><|im_end|>\n<|im_start|>tool\nr<|im_end|>\n"},
		{"arguments as an object", `[` + strings.Replace(aCall, `"{\"b\":1,\"a\":[2.50,null]}"`, `{"z":{},"a":"é<"}`, 1) + `]`, "", "",
			"<|im_start|>assistant\n<tool_call>f {\"z\": {}, \"a\": \"é<\"}</tool_call><|im_end|>\n"},
		{"no arguments", `[` + strings.Replace(aCall, `"{\"b\":1,\"a\":[2.50,null]}"`, `""`, 1) + `]`, "", "",
			"<|im_start|>assistant\n<tool_call>f {}</tool_call><|im_end|>\n"},
		{"large integers", `[` + strings.Replace(aCall, `\"b\":1`, `\"b\":123456789012345678901234567890,\"c\":-0,\"d\":1e2`, 1) + `]`, "", "",
			"<|im_start|>assistant\n<tool_call>f {\"b\": 123456789012345678901234567890, \"c\": 0, \"d\": 100.0, \"a\": [2.5, null]}</tool_call><|im_end|>\n"},
		{"reasoning under another name", `[{"role":"assistant","content":"a","reasoning":"why"}]`, "", "", "<|im_start|>assistant\n<think>why</think>\na<|im_end|>\n"},
		{"reasoning in the content", `[{"role":"assistant","content":"<think>\nwhy\n</think>\n\na"}]`, "", "", "<|im_start|>assistant\n<think>why</think>\na<|im_end|>\n"},
		{"an answer sent back", `[{"role":"assistant","content":"a","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":[]}]`, "", "", "<|im_start|>assistant\na<|im_end|>\n"},
		{"a refusal", `[{"role":"assistant","content":null,"refusal":"no"}]`, "", "", "<|im_start|>assistant\nno<|im_end|>\n"},
		{"no content", `[{"role":"assistant","content":null}]`, "", "", "<|im_start|>assistant\n<|im_end|>\n"},
		{"tools, in order", `[` + userMessage + `]`, `[` + aTool + `]`, "",
			"<|im_start|>tools\nf: {\"type\": \"object\", \"properties\": {\"z\": {\"type\": \"string\"}, \"a\": {\"type\": \"integer\"}}}\n- z (string)\n- a (integer)\n<|im_end|>\n" + user},
		{"tool without parameters", `[` + userMessage + `]`, `[{"type":"function","function":{"name":"f"}}]`, "",
			"<|im_start|>tools\nf: {\"type\": \"object\", \"properties\": {}}\n<|im_end|>\n" + user},
		{"empty tools", `[` + userMessage + `]`, `[]`, "", user},
		{"null tools and kwargs", `[` + userMessage + `]`, ` null `, `null`, user},
		{"noncharacters", `[{"role":"user","content":"\ufdd0\uffff\u0000"}]`, "", "", "<|im_start|>user\n\ufdd0\uffff\x00<|im_end|>\n"},
	} {
		r, err := c.Render(Conversation{Messages: []byte(test.messages), Tools: []byte(test.tools), Kwargs: []byte(test.kwargs)})
		if err != nil || r.Text != test.want {
			t.Errorf("%s:\n got %q, %v\nwant %q", test.name, r.Text, err, test.want)
		}
	}
	r, err := c.Render(Conversation{Messages: []byte(`[` + userMessage + `]`), Kwargs: []byte(`{"enable_thinking":false}`), AddGenerationPrompt: true})
	if want := user + "<|im_start|>assistant\n<think></think>\n"; err != nil || r.Text != want {
		t.Errorf("kwargs: %q, %v, want %q", r.Text, err, want)
	}
}

// TestRaise: the words of raise_exception are the error's.
func TestRaise(t *testing.T) {
	c, err := Compile(`{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}{{ raise_exception('no system, please: ' ~ m.content) }}{% endif %}{% endfor %}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Render(Conversation{Messages: []byte(`[{"role":"system","content":"s"},` + userMessage + `]`)})
	var e *Error
	if !errors.As(err, &e) || e.Message != "no system, please: s" || e.Param != "messages" {
		t.Errorf("%+v", err)
	}
	c, err = Compile(`{{ messages[0].content }}{{ nosuch.thing }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Render(Conversation{Messages: []byte(`[` + userMessage + `]`)})
	if !errors.As(err, &e) || !strings.Contains(e.Message, "'nosuch' is undefined") {
		t.Errorf("%+v", err)
	}
}

// TestDropped: what a template leaves out of the prompt is refused, not lost.
func TestDropped(t *testing.T) {
	c := tiny(t, nil)
	for _, test := range []struct{ messages, tools, param string }{
		{`[` + userMessage + `,{"role":"tool","content":"x","tool_call_id":"c1"}]`, "", "messages[1].role"},
		{`[` + userMessage + `,{"role":"function","content":"x","name":"f"}]`, "", "messages[1].role"},
	} {
		_, err := c.Render(Conversation{Messages: []byte(test.messages), Tools: []byte(test.tools)})
		var e *Error
		if !errors.As(err, &e) || e.Param != test.param {
			t.Errorf("%s: %+v, want param %s", test.messages, err, test.param)
		}
	}
	r, err := c.Render(Conversation{Messages: []byte(`[{"role":"developer","content":"d"},` + userMessage + `]`)})
	if want := "<｜begin▁of▁sentence｜>d<｜User｜>u"; err != nil || r.Text != want {
		t.Errorf("developer: %q, %v, want %q", r.Text, err, want)
	}
}

// TestForms: a template gets content in the shape that it handles.
func TestForms(t *testing.T) {
	const head = `{% for m in messages %}[{{ m.role }}:`
	for _, test := range []struct{ name, source, want string }{
		{"strings", head + `{{ '' + m.content }}]{% endfor %}`, "[user:a\nb][assistant:c]"},
		{"prints anything", head + `{{ m.content }}]{% endfor %}`, "[user:a\nb][assistant:c]"},
		{"parts only", head + `{% for p in m.content %}{{ p.text }}/{% endfor %}]{% endfor %}`, "[user:a/b/][assistant:c/]"},
		{"either", head + `{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}]{% endfor %}`, "[user:ab][assistant:c]"},
		{"dumps parts", head + `{{ m.content if m.content is string else m.content | tojson }}]{% endfor %}`, "[user:a\nb][assistant:c]"},
	} {
		c, err := Compile(test.source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Render(Conversation{Messages: []byte(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]`)})
		if err != nil || r.Text != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, r.Text, err, test.want)
		}
	}
}

// TestArgumentText: a template that joins arguments to a string gets a string.
func TestArgumentText(t *testing.T) {
	c, err := Compile(`{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{% endfor %}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for arguments, want := range map[string]string{
		`"{\"b\":1, \"a\":2}"`: `uf {"b":1, "a":2}`,
		`{"b":1, "a":2}`:       `uf {"b": 1, "a": 2}`,
	} {
		m := fmt.Sprintf(`[%s,{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":%s}}]}]`, userMessage, arguments)
		r, err := c.Render(Conversation{Messages: []byte(m)})
		if err != nil || r.Text != want {
			t.Errorf("%s: %q, %v, want %q", arguments, r.Text, err, want)
		}
	}
}
