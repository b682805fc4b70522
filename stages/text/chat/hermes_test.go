package chat

import (
	"strings"
	"testing"

	"krater/stages/text/toolcall"
)

const hermesHistory = `[{"role":"system","content":"s"},` + userMessage + `,` +
	`{"role":"assistant","content":"look","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"b\": \"<|x|>\"}"}},{"id":"b","type":"function","function":{"name":"f","arguments":""}}]},` +
	`{"role":"tool","tool_call_id":"a","content":"one"},{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"two"}]},{"role":"assistant","content":"z"}]`

// TestHermes: a template without a place for tools gets them as text, and nothing else changes.
func TestHermes(t *testing.T) {
	const body = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
	const calls = "look\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"<|x|>\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
	const results = "[user:<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>][assistant:z]"
	block := toolsIntro + `{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}}}` + "\n" + toolsOutro
	const parts = "{% for m in messages %}[{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
	noSystem := "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + body
	for _, c := range []struct{ name, source, messages, tools, want string }{
		{"tools and calls", body, hermesHistory, aTool, "[system:s\n\n" + block + "][user:u][assistant:" + calls + "]" + results},
		{"parts", parts, hermesHistory, aTool, "[system:s\n\n" + block + "][user:u][assistant:" + calls + "]" + results},
		{"no tools", body, hermesHistory, "", "[system:s][user:u][assistant:" + calls + "]" + results},
		{"a new system message", body, `[` + userMessage + `]`, aTool, "[system:" + block + "][user:u]"},
		{"no place for a system message", noSystem, `[` + userMessage + `]`, aTool, "[user:" + block + "\n\nu]"},
		{"neither tools nor calls", body, `[` + userMessage + `]`, "", "[user:u]"},
	} {
		tmpl, err := Compile(c.source, Options{SpecialTokens: []string{"<|x|>"}})
		if err != nil {
			t.Fatal(err)
		}
		tools := ""
		if c.tools != "" {
			tools = "[" + c.tools + "]"
		}
		r, err := tmpl.Render(Conversation{Messages: []byte(c.messages), Tools: []byte(tools)})
		if err != nil || r.Text != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.name, err, r.Text, c.want)
			continue
		}
		if strings.Contains(c.want, "<|x|>") {
			if len(r.Protected) != 1 || r.Text[r.Protected[0].Start:r.Protected[0].End] != "<|x|>" {
				t.Errorf("%s: protected %v", c.name, r.Protected)
			}
		}
	}
}

// TestParser: an answer is taken apart where there are tools, or where the template reasons.
func TestParser(t *testing.T) {
	plain, err := Compile("{% for m in messages %}{{ m.content }}{% endfor %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if plain.Parser(toolcall.Options{}) != nil {
		t.Error("a template without reasoning needs no parser")
	}
	answer, got := answered(plain.Parser(toolcall.Options{Tools: []byte("[" + aTool + "]")}), `x <tool_call>{"name":"f","arguments":{"z":"1"}}</tool_call>`)
	if answer != "x" || len(got) != 1 || got[0] != `f {"z":"1"}` {
		t.Errorf("%q %q", answer, got)
	}
}
