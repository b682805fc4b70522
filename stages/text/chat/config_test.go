package chat

import (
	"strings"
	"testing"
)

func TestFromConfig(t *testing.T) {
	const show = `{{ bos_token }}{{ unk_token }}{{ messages[0].content }}{{ eos_token }}`
	for _, test := range []struct{ name, config, file, tools, want string }{
		{"a string", `{"chat_template":"` + show + `","bos_token":"<b>","eos_token":{"content":"<e>","lstrip":false},"unk_token":"<u>","add_bos_token":true}`, "", "", "<b><u>u<e>"},
		{"tokens of none", `{"chat_template":"` + show + `","bos_token":null}`, "", "", "u"},
		{"the file wins", `{"chat_template":"x{{ messages[0].content }}","bos_token":"<b>"}`, show, "", "<b>u"},
		{"the file alone", ``, show, "", "u"},
		{"named", `{"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d{{ messages[0].content }}"},{"name":"tool_use","template":"t{{ tools[0].function.name }}{{ messages[0].content }}"}]}`, "", "", "du"},
		{"named, with tools", `{"chat_template":[{"name":"default","template":"d{{ messages[0].content }}"},{"name":"tool_use","template":"t{{ tools[0].function.name }}{{ messages[0].content }}"}]}`, "", `[` + aTool + `]`, "tfu"},
	} {
		c, err := FromConfig([]byte(test.config), []byte(test.file), nil)
		if err != nil || c == nil {
			t.Errorf("%s: %v, %v", test.name, c, err)
			continue
		}
		r, err := c.Render(Conversation{Messages: []byte(`[` + userMessage + `]`), Tools: []byte(test.tools)})
		if err != nil || r.Text != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, r.Text, err, test.want)
		}
	}
	for name, config := range map[string]string{"none": `{}`, "null": `{"chat_template":null}`, "no file": ``} {
		if c, err := FromConfig([]byte(config), nil, nil); c != nil || err != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	for config, want := range map[string]string{
		`{`:                                       "tokenizer_config.json",
		`{"chat_template":1}`:                     "neither a string nor a list",
		`{"chat_template":[{"name":"rag"}]}`:      "no template named default",
		`{"chat_template":"a\n{% if %}"}`:         "line 2",
		`{"chat_template":"a\n{{ x"}`:             "line 2",
		`{"chat_template":"\n\n{% include x %}"}`: `unsupported tag "include"`,
	} {
		if _, err := FromConfig([]byte(config), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

func TestBadTokens(t *testing.T) {
	for name, o := range map[string]Options{
		"not UTF-8": {BOS: "\xfe"}, "no name": {Tokens: map[string]string{"a b": "x"}}, "a function": {Tokens: map[string]string{"range": "x"}},
		"tool_use does not compile": {ToolUse: "{% if %}"},
	} {
		if _, err := Compile("x", o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestAssistantTokens: what the config does not call special may come from an assistant.
func TestAssistantTokens(t *testing.T) {
	const config = `{"chat_template":"{% for m in messages %}{{ m.content }}|{% endfor %}","added_tokens_decoder":{` +
		`"1":{"content":"<think>","special":false},"2":{"content":"<|im_end|>","special":true}}}`
	c, err := FromConfig([]byte(config), nil, []string{"<think>", "<|im_end|>"})
	if err != nil {
		t.Fatal(err)
	}
	const s = `<think><|im_end|>`
	r, err := c.Render(Conversation{Messages: []byte(`[{"role":"user","content":"` + s + `"},{"role":"assistant","content":"` + s + `"}]`)})
	if want := "⟦<think><|im_end|>⟧|<think>⟦<|im_end|>⟧|"; err != nil || shown(r) != want {
		t.Errorf("%q, %v, want %q", shown(r), err, want)
	}
}

func TestSum(t *testing.T) {
	sums := map[[32]byte]string{}
	for name, o := range map[string]struct{ source, toolUse string }{"a": {"a", ""}, "b": {"b", ""}, "ab": {"a", "b"}} {
		c, err := Compile(o.source, Options{ToolUse: o.toolUse})
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := sums[c.Sum()]; ok {
			t.Errorf("%s and %s have one sum", name, other)
		}
		sums[c.Sum()] = name
	}
}
