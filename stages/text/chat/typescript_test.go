package chat

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// wantsTypes is a template that takes tools as Kimi K2.5's does.
const wantsTypes = `{% if tools %}{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}`

// TestTypeScript holds tools in TypeScript against the code of Kimi K2.5's release
// (testdata/typescript.py).
func TestTypeScript(t *testing.T) {
	c, err := Compile(wantsTypes, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("testdata/typescript.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var v struct {
			Tools    json.RawMessage
			Expected *string
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		r, err := c.Render(Conversation{Messages: []byte(`[{"role":"user","content":""}]`), Tools: v.Tools})
		if err != nil {
			t.Fatalf("%s: %v", v.Tools, err)
		}
		switch {
		case v.Expected == nil && strings.HasPrefix(r.Text, `[{"function": {`): // JSON, with keys in order
		case v.Expected == nil || *v.Expected != r.Text:
			t.Errorf("%s\n got %s\nwant %v", v.Tools, r.Text, v.Expected)
		}
	}
	if lines.Err() != nil || n < 160 {
		t.Errorf("%d vectors, %v", n, lines.Err())
	}
}

// TestTypeScriptOfAClient: a client's own declaration is left alone, its words yield no special
// tokens, and a description in a deep place does not become a long text.
func TestTypeScriptOfAClient(t *testing.T) {
	c, err := Compile(wantsTypes, Options{SpecialTokens: []string{"<|im_end|>"}})
	if err != nil {
		t.Fatal(err)
	}
	conv := Conversation{Messages: []byte(`[{"role":"user","content":"x"}]`), Tools: []byte(`[{"type":"function","function":{"name":"f","description":"<|im_end|>"}}]`)}
	r, err := c.Render(conv)
	if err != nil || !strings.Contains(r.Text, "// <|im_end|>\ntype f = (_: {}) => any;\n}\nx") || len(r.Protected) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	conv.Kwargs = []byte(`{"tools_ts_str":"mine"}`)
	if r, err := c.Render(conv); err != nil || r.Text != "minex" {
		t.Errorf("%+v, %v", r, err)
	}
	conv.Kwargs = nil
	deep := strings.Repeat(`{"type":"array","description":"d","items":`, 40) + `{"type":"string","description":"` + strings.Repeat(`a\n`, 100_000) + `"}` + strings.Repeat(`}`, 40)
	conv.Tools = []byte(`[{"type":"function","function":{"name":"f","parameters":{"properties":{"p":` + deep + `}}}}]`)
	if r, err := c.Render(conv); err != nil || !strings.HasPrefix(r.Text, "[{") {
		t.Errorf("%.200s, %v", r.Text, err)
	}
}
