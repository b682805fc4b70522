package schema

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"krater/stages/text/grammar"
)

// bytesOnly is a vocabulary of single bytes.
var bytesOnly = grammar.NewVocabulary(257, func(id int32) []byte {
	if id == 256 {
		return nil
	}
	return []byte{byte(id)}
}, []int32{256})

func compileSchema(text string, o Options) (*grammar.Grammar, error) {
	rules := &grammar.Rules{}
	e, err := Add(rules, []byte(text), o)
	if err != nil {
		return nil, err
	}
	return grammar.New(rules, rules.Add(e), bytesOnly)
}

func fits(g *grammar.Grammar, text string) bool {
	m := g.Matcher()
	return m.Text(text) == nil && m.Complete()
}

// cases are schemas with texts that fit and, behind "|", that do not.
var cases = []struct{ schema, yes, not string }{
	{`{}`, `{} [] "a" 1 -1.5e3 true null {"a":{"b":[1,2]}}`, `{a} [1,] 01 "\q" nul`},
	{`true`, `1 {}`, `x`},
	{`{"properties":{"a":{"type":"null"}}}`, `{} {"a":null} {"b":1}`, `1 "x" [] {"a":1}`},
	{`{"minLength":2,"maximum":3}`, `"ab" 3`, `"a" 4 {} null`},
	{`{"type":"object"}`, `{} {"a":1} {"a":1,"b":[]}`, `[] 1`},
	{`{"type":["integer","null"]}`, `1 -12 0 null`, `1.5 01 "1" -`},
	{`{"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false,"type":"object"}`,
		`{"a":1} {"a":1,"b":"x"} {"a":1}`, `{} {"b":"x"} {"a":1,"c":2} {"b":"x","a":1} {"a":"1"}`},
	{`{"properties":{"a":{"type":"integer"}},"type":"object"}`, `{} {"a":1} {"a":1,"b":true} {"b":1} {"aa":"x"} {"":0}`, `{"a":"x"} {"b":1,"a":1} {"\u0061":"x"}`},
	{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{} {"x":1,"y":2}`, `{"x":"1"}`},
	{`{"type":"object","required":["x"],"additionalProperties":{"type":"integer"}}`, `{"x":1} {"x":1,"y":2}`, `{} {"y":2} {"x":"1"}`},
	{`{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}`, `[1] [1,2] [1,2,3]`, `[] [1,2,3,4] ["a"]`},
	{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`, `[] [1] [1,"a"]`, `["a"] [1,"a",2]`},
	{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":1,"maxItems":3}`, `[1] [1,"a"] [1,"a",null]`, `[] [1,"a",1,1]`},
	{`{"type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"null"}}`, `[] [1] [1,null,null]`, `[null] [1,1]`},
	{`{"type":"array","prefixItems":[{},{}],"maxItems":1}`, `[] [1]`, `[1,2]`},
	{`{"type":"string","minLength":2,"maxLength":3}`, `"ab" "abc" "日本" "\u00e9\n" "\ud83d\ude00x"`, `"a" "abcd" "\ud83d" ""`},
	{`{"type":"string","pattern":"^a+$"}`, `"a" "aaa"`, `"" "ab" "ba"`},
	{`{"type":"string","pattern":"b\"c"}`, `"b\"c" "xb\"cy"`, `"bc" "b\u0022c"`},
	{`{"type":"string","pattern":"^[a-c]+$","maxLength":3}`, `"a" "abc"`, `"" "abcd" "d"`},
	{`{"type":"string","pattern":"a","minLength":3}`, `"xxa" "axx" "xxax" "aaaaaa"`, `"a" "xa" "xxx"`},
	{`{"allOf":[{"pattern":"a"},{"pattern":"b$"}],"type":"string"}`, `"ab" "bab"`, `"a" "b" "ba"`},
	{`{"type":"string","format":"date"}`, `"2026-02-28" "2026-12-31"`, `"2026-02-30" "2026-13-01" "26-01-01"`},
	{`{"minimum":3,"maximum":12,"type":"integer"}`, `3 7 9 10 12`, `2 13 0 30 -3 100`},
	{`{"minimum":-12,"exclusiveMaximum":5,"type":"integer"}`, `-12 -3 0 4`, `-13 5 10 -0`},
	{`{"exclusiveMinimum":99,"type":"integer"}`, `100 101 1000`, `99 1 0 -100`},
	{`{"minimum":0.5,"maximum":2.25,"type":"number"}`, `0.5 0.50 0.7 1 1.999 2 2.25 2.2500 2.1`, `0 0.4 2.26 2.250001 3 0.49999 -1`},
	{`{"exclusiveMinimum":0,"exclusiveMaximum":1,"type":"number"}`, `0.1 0.001 0.999`, `0 1 0.0 1.0 0.000 -0.1`},
	{`{"maximum":-1.5,"type":"number"}`, `-1.5 -2 -100.1`, `-1.4 -1 0 1`},
	{`{"minimum":0.5,"maximum":2.5,"type":"integer"}`, `1 2`, `0 3`},
	{`{"minimum":1e2,"type":"number"}`, `100 100.5 2000`, `99 99.9`},
	{`{"enum":[1,"a",null,[1,2],{"b":1}]}`, `1 "a" null [1,2] {"b":1}`, `2 "b" [1] {}`},
	{`{"enum":[1,"a",null],"type":["string","null"]}`, `"a" null`, `1`},
	{`{"const":{"a":[true]}}`, `{"a":[true]}`, `{"a":[]}`},
	{`{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}`, `1 "a"`, `"ab" null`},
	{`{"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"],"properties":{"b":{"const":1}}}]}`, `{"a":1} {"b":1} {"a":2,"b":1}`, `{} {"b":2} {"a":"x"}`},
	{`{"allOf":[{"type":"integer","minimum":3},{"maximum":5}]}`, `3 5`, `2 6`},
	{`{"allOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"a":{"minimum":2}}}],"type":"object"}`, `{"a":2}`, `{"a":1} {"a":"x"}`},
	{`{"oneOf":[{"type":"integer"},{"type":"string"}]}`, `1 "a"`, `null`},
	{`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"},"w":{"type":"string"}},"required":["k","w"]}]}`,
		`{"k":"a"} {"k":"a","v":1} {"k":"b","w":""}`, `{"k":"c"} {"k":"b"} {}`},
	{`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"],"additionalProperties":false}}}`,
		`{"v":1} {"v":1,"next":{"v":2,"next":{"v":3}}}`, `{} {"v":1,"next":{}}`},
	{`{"type":"array","items":{"$ref":"#"}}`, `[] [[],[[]]]`, `[1]`},
	{`{"definitions":{"a/b":{"type":"null"}},"items":{"$ref":"#/definitions/a~1b"},"type":"array"}`, `[null]`, `[1]`},
	{`{"title":"t","description":"d","default":1,"examples":[1],"x-any":{"y":1},"type":"null"}`, `null`, `1`},
	{`{"type":"object","properties":{"a":false,"b":true}}`, `{"b":1} {}`, `{"a":1}`},
	{`{"properties":{"a":{}},"required":["a"],"type":"object","additionalProperties":false}`, `{ "a" : 1 } {"a": 1}`, `{  "a":1}`},
}

func texts(list string) (out []string) {
	depth, quoted := 0, false
	from := 0
	for i, c := range list + " " {
		switch {
		case c == '"' && (i == 0 || list[i-1] != '\\'):
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ' ' && depth == 0:
			out = append(out, list[from:i])
			from = i + 1
		}
	}
	return out
}

func TestSchemas(t *testing.T) {
	for _, c := range cases {
		g, err := compileSchema(c.schema, Options{})
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		for _, s := range texts(c.yes) {
			if !fits(g, s) {
				t.Errorf("%s: %s does not fit", c.schema, s)
			}
		}
		for _, s := range texts(c.not) {
			if fits(g, s) {
				t.Errorf("%s: %s fits", c.schema, s)
			}
		}
	}
}

func TestClosed(t *testing.T) {
	g, err := compileSchema(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"object","additionalProperties":true}},"required":["a"]}`, Options{Closed: true})
	if err != nil {
		t.Fatal(err)
	}
	if !fits(g, `{"a":1,"b":{"c":1}}`) || fits(g, `{"a":1,"c":1}`) {
		t.Error("members that are not named")
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ schema, pointer, reason string }{
		{`{"type":"object","properties":{"a":{"patternProperties":{}}}}`, "/properties/a/patternProperties", `"patternProperties" is not supported`},
		{`{"not":{}}`, "/not", `"not"`},
		{`{"uniqueItems":true}`, "/uniqueItems", "uniqueItems"},
		{`{"multipleOf":2}`, "/multipleOf", "multipleOf"},
		{`{"frobnicate":2}`, "/frobnicate", "frobnicate"},
		{`{"format":"iri","type":"string"}`, "/format", "iri"},
		{`{"$ref":"http://x/y"}`, "/$ref", "another document"},
		{`{"$ref":"#/$defs/x"}`, "/$ref", "there is no"},
		{`{"type":"strin"}`, "/type", "unknown"},
		{`{"pattern":"(?=a)","type":"string"}`, "/pattern", "(?="},
		{`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, "/oneOf", "at once"},
		{`{"minLength":-1}`, "/minLength", "whole number"},
		{`{"items":[3]}`, "/items/0", "a schema is"},
		{`[]`, "", "a schema is"},
		{`{"a":`, "", "not JSON"},
		{`{} {}`, "", "follows"},
		{`{"type":"string","maxLength":100000,"pattern":"^[a-z]+$"}`, "/pattern", "states"},
	} {
		_, err := compileSchema(c.schema, Options{})
		e, ok := err.(*Error)
		if !ok || e.Pointer != c.pointer || !strings.Contains(e.Reason, c.reason) {
			t.Errorf("%s: %v", c.schema, err)
		}
	}
	for _, s := range []string{`false`, `{"$ref":"#"}`, `{"type":"string","minLength":3,"maxLength":2}`, `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`} {
		if _, err := compileSchema(s, Options{}); s != `{"$ref":"#"}` && (err == nil || !strings.Contains(err.Error(), "no text fits")) {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestBombs: a schema that is small and means much is read or refused soon.
func TestBombs(t *testing.T) {
	nested := func(open, inner, end string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	doubling := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range 60 {
		next := `{"$ref":"#/$defs/d` + string(rune('0'+(i+1)/10)) + string(rune('0'+(i+1)%10)) + `"}`
		doubling += `"d` + string(rune('0'+i/10)) + string(rune('0'+i%10)) + `":{"type":"array","prefixItems":[` + next + `,` + next + `]},`
	}
	doubling = strings.Replace(doubling, "d0\"", "d00\"", 1) + `"d60":{"type":"null"}}}`
	groups := `{"type":"object","allOf":[`
	for i := range 24 {
		n := string(rune('a' + i))
		groups += `{"anyOf":[{"required":["` + n + `"]},{"properties":{"` + n + `":{"type":"null"}}}]},`
	}
	groups = strings.TrimSuffix(groups, ",") + `]}`
	for name, s := range map[string]string{
		"deep":      nested(`{"items":`, `{}`, `}`, 5000),
		"doubling":  doubling,
		"choices":   groups,
		"length":    `{"type":"string","minLength":1000000000}`,
		"items":     `{"type":"array","items":` + nested(`{"type":"array","minItems":100000,"items":`, `{}`, `}`, 20) + `,"minItems":100000}`,
		"pattern":   `{"type":"string","pattern":"` + nested("(", "a", "{1,9})", 60) + `"}`,
		"product":   `{"type":"string","pattern":"(a|b)*a(a|b){30}","maxLength":200}`,
		"ambiguous": `{"type":"string","pattern":"(a|b)*a(a|b){200}"}`,
		"digits":    `{"minimum":` + strings.Repeat("9", 300) + `,"maximum":` + strings.Repeat("9", 399) + `}`,
		"names":     `{"type":"object","properties":{` + strings.TrimSuffix(strings.Repeat(`"`+strings.Repeat("n", 100)+`":{},`, 1), ",") + `}}`,
	} {
		began := time.Now()
		g, err := compileSchema(s, Options{})
		if err == nil {
			m := g.Matcher()
			for range 50 {
				mask, err := m.Mask()
				if err != nil {
					break
				}
				next := int32(-1)
				for id := int32(255); id >= 0 && next < 0; id-- {
					if mask[id/32]>>(id%32)&1 == 1 {
						next = id
					}
				}
				if next < 0 || m.Accept(next) != nil {
					break
				}
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v: %v", name, took, err)
		} else {
			t.Log(name, took, err)
		}
	}
}

// TestWarm: the text whose masks are found ahead follows the grammar of objects.
func TestWarm(t *testing.T) {
	if err := Warm(bytesOnly); err != nil {
		t.Error(err)
	}
}

// BenchmarkWideObjects reads and compiles a schema of many objects with many names, which allow others beside them.
func BenchmarkWideObjects(b *testing.B) {
	var objects []string
	for i := range 40 {
		var names []string
		for j := range 16 {
			names = append(names, fmt.Sprintf(`"property%dOf%d": {"type": "string"}`, j, i))
		}
		objects = append(objects, fmt.Sprintf(`"object%d": {"type": "object", "properties": {%s}}`, i, strings.Join(names, ", ")))
	}
	text := fmt.Sprintf(`{"type": "object", "properties": {%s}}`, strings.Join(objects, ", "))
	for b.Loop() {
		if _, err := compileSchema(text, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
