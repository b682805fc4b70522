package toolcall

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTypes(t *testing.T) {
	for _, c := range []struct{ schema, text, want string }{
		{`{"type":"string"}`, "12", `"12"`},
		{`{"type":"integer"}`, " 12 ", `12`},
		{`{"type":"integer"}`, "twelve", `"twelve"`},
		{`{"type":"boolean"}`, "True", `true`},
		{`{"type":["string","null"]}`, "null", `null`},
		{`{"type":["string","integer"]}`, "12", `12`},
		{`{"type":"object"}`, `{'a': None, "b": 'it\'s "x"'}`, `{"a": null, "b": "it's \"x\""}`},
		{`{"type":"array"}`, `[1,`, `"[1,"`},
		{`{"enum":["a","1"]}`, "1", `"1"`},
		{`{"const":1}`, "1", `1`},
		{`{"anyOf":[{"type":"string"},{"type":"null"}]}`, "1", `"1"`},
		{`{"$ref":"#/$defs/n"}`, "1", `1`},
		{`{"$ref":"#/$defs/loop"}`, "1", `1`},
		{`{"$ref":"#/elsewhere"}`, "x", `"x"`},
		{`true`, `"x"`, `"x"`},
		{`{}`, `{"a":1}`, `{"a":1}`},
	} {
		list := fmt.Sprintf(`[{"type":"function","function":{"name":"f","parameters":{"properties":{"p":%s},"$defs":{"n":{"type":"number"},"loop":{"$ref":"#/$defs/loop"}}}}}]`, c.schema)
		if got := readTools([]byte(list)).typesOf("f", "p").value(c.text); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.text, c.schema, got, c.want)
		}
	}
}

// TestSchemaBomb: a schema whose alternatives double at each level is given up.
func TestSchemaBomb(t *testing.T) {
	list := `[{"type":"function","function":{"name":"f","parameters":{"properties":{"p":{"$ref":"#/$defs/a"}},"$defs":{"a":{"anyOf":[` +
		strings.TrimSuffix(strings.Repeat(`{"$ref":"#/$defs/a"},`, 100), ",") + `]}}}}}]`
	began := time.Now()
	if got := readTools([]byte(list)).typesOf("f", "p"); got != allTypes {
		t.Errorf("types %b", got)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestLimits: arguments that are too deep or too many are cut, and are still JSON.
func TestLimits(t *testing.T) {
	s := &sample{Sign: "<tool_call>", Text: `<tool_call>{"name":"now","arguments":{"a":` + strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000) + `,"b":1}}</tool_call>x`}
	if r := read(t, s, s.Text); len(r.calls) != 1 || !strings.HasSuffix(r.calls[0].Args, `,"b":1}`) || strings.Count(r.calls[0].Args, "[") >= maxDepth || r.answer != "x" {
		t.Errorf("%+v", r)
	}
	const one = `<tool_call>{"name":"now","arguments":{}}</tool_call>`
	s.Text = strings.Repeat(one, MaxCalls+2)
	if r := read(t, s, s.Text); len(r.calls) != MaxCalls || !strings.Contains(r.answer, `{"name":"now"`) {
		t.Errorf("%d calls, answer %q", len(r.calls), r.answer)
	}
	s.Text = `<tool_call>{"name":"now","arguments":{"a":1,"a":{"b":2},"c":3}}</tool_call>`
	if r := read(t, s, s.Text); r.calls[0].Args != `{"a":1,"c":3}` {
		t.Errorf("a name twice: %s", r.calls[0].Args)
	}
}
