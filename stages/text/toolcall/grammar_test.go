package toolcall

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"krater/stages/text/grammar"
)

// closers end a value that is text as it is.
var closers = []string{"</think>", "</arg_value>", "\n</parameter>", "</parameter>", "</｜DSML｜parameter>", "<|end|>", gemmaQuote, "<channel|>", "</mm:think>", minimax3Mark + "</"}

// bytesOnly is a vocabulary of single bytes, an end, and the closers.
var bytesOnly = grammar.NewVocabulary(257+len(closers), func(id int32) []byte {
	switch {
	case id < 256:
		return []byte{byte(id)}
	case id == 256:
		return nil
	}
	return []byte(closers[id-257])
}, []int32{256})

const spokenTools = `[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
	"city":{"type":"string"},"unit":{"enum":["C","F"]},"days":{"type":"integer","minimum":1,"maximum":14},"when":{"type":"array","items":{"type":"boolean"},"maxItems":2},
	"note":{"type":["string","null"]}},"required":["city","days"]}}},
	{"type":"function","function":{"name":"book","parameters":{"type":"object","properties":{
		"guest":{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":5},"age":{"type":"integer","minimum":0,"maximum":99}},"required":["name"],"additionalProperties":false},
		"rooms":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"object","properties":{"kind":{"enum":["a\"b","7"]},"beds":{"type":"array","items":{"type":"integer","minimum":1,"maximum":3},"maxItems":2}},"required":["beds"],"additionalProperties":false}},
		"code":{"type":"string","pattern":"^[A-Z<|]{2,6}$"},"extra":{"type":"object"}},"required":["guest","rooms","code"]}}},
	{"type":"function","function":{"name":"now"}}]`

// signs are markers of a template of each format in which calls can be demanded.
var signs = map[string]string{
	"hermes": "<think><tool_call>", "llama3": "<|start_header_id|>", "mistral": "[TOOL_CALLS]", "mistral_args": "[TOOL_CALLS][ARGS]", "kimi_k2": kimiOpen,
	"deepseek_v3": "<think>" + deepseekOpen, "deepseek_fenced": deepseekOpen + "```json", "harmony": harmonyChannel, "glm4": "<think><arg_key>",
	"qwen3_coder": coderOpen, "minimax_m2": "<minimax:tool_call>", "deepseek_v32": "<think>｜DSML｜function_calls", "deepseek_v4": "｜DSML｜tool_calls",
	"gemma4": "<|channel>thought" + gemmaOpen, "minimax_m3": "<mm:think>" + minimax3Mark,
}

// randomAnswer follows the masks of a grammar; tokens that may end something are preferred later on.
func randomAnswer(t *testing.T, rules *grammar.Rules, e *grammar.Expr, rng *rand.Rand) string {
	t.Helper()
	g, err := grammar.New(rules, rules.Add(e), bytesOnly)
	if err != nil {
		t.Fatal(err)
	}
	m := g.Matcher()
	var b strings.Builder
	for i := range 4000 {
		mask, err := m.Mask()
		if err != nil {
			t.Fatal(err)
		}
		if mask[8]&1 == 1 && rng.IntN(2) == 0 {
			return b.String()
		}
		var allowed []byte
		for c := range 256 {
			if mask[c/32]>>(c%32)&1 == 1 {
				allowed = append(allowed, byte(c))
			}
		}
		if id := 257 + rng.IntN(len(closers)); mask[id/32]>>(id%32)&1 == 1 && m.Accept(int32(id)) == nil {
			b.WriteString(closers[id-257])
			continue
		}
		if len(allowed) == 0 {
			return b.String()
		}
		c := allowed[rng.IntN(len(allowed))]
		for _, close := range []byte(`<"]}`) {
			if strings.IndexByte(string(allowed), close) >= 0 && rng.IntN(4) == 0 && i > 10 {
				c = close
			}
		}
		if err := m.Accept(int32(c)); err != nil {
			t.Fatal(err)
		}
		b.WriteByte(c)
	}
	t.Fatalf("no end: %s", b.String()[:500])
	return ""
}

// TestSpoken: calls that a format's grammar allows are read back by its parser, with arguments that the
// tool's schema allows.
func TestSpoken(t *testing.T) {
	if len(signs) != len(spoken) {
		t.Errorf("%d formats are tested, there are %d", len(signs), len(spoken))
	}
	for name := range signs {
		for i := range uint64(8) {
			checkSpoken(t, name, i)
		}
	}
}

// FuzzSpoken tries more answers than TestSpoken.
func FuzzSpoken(f *testing.F) {
	names := slices.Sorted(maps.Keys(signs))
	for i := range names {
		f.Add(uint8(i), uint64(100))
	}
	f.Fuzz(func(t *testing.T, which uint8, seed uint64) {
		checkSpoken(t, names[int(which)%len(names)], seed)
	})
}

// checkSpoken reads a random answer of a format's grammar, whole and byte by byte.
func checkSpoken(t *testing.T, name string, seed uint64) {
	t.Helper()
	f := Detect(signs[name])
	rng := rand.New(rand.NewPCG(seed, uint64(len(name))))
	rules := &grammar.Rules{}
	s := &Speaker{Rules: rules, Spell: grammar.Text, Tools: []byte(spokenTools), Single: rng.IntN(2) == 0}
	calls, err := f.Calls(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	text := randomAnswer(t, rules, f.Answer(s, calls, false), rng)
	for _, pieces := range [][]string{{text}, singleBytes(text)} {
		p, r := f.New(Options{Tools: []byte(spokenTools)}), &reader{t: t}
		for _, piece := range pieces {
			r.take(p.Push(piece))
		}
		r.take(p.Flush())
		if len(r.calls) == 0 || strings.TrimSpace(r.answer) != "" || s.Single && len(r.calls) != 1 {
			t.Fatalf("%s: %q is read as calls %q and answer %q", name, text, r.calls, r.answer)
		}
		for _, c := range r.calls {
			checkCall(t, name, text, c)
		}
	}
}

func checkCall(t *testing.T, format, text string, c call) {
	t.Helper()
	if c.Name == "book" {
		checkBooking(t, format, text, c)
		return
	}
	var args struct {
		City *string `json:"city"`
		Unit *string `json:"unit"`
		Days *int    `json:"days"`
		When []bool  `json:"when"`
		Note *string `json:"note"`
	}
	d := json.NewDecoder(strings.NewReader(c.Args))
	d.UseNumber()
	d.DisallowUnknownFields()
	if err := d.Decode(&args); err != nil {
		t.Fatalf("%s: %q: %s: %v", format, text, c.Args, err)
	}
	switch {
	case c.Name == "now" && c.Args == "{}" || c.Name == "now" && args.City == nil && args.Days == nil:
	case c.Name != "weather" || args.City == nil || args.Days == nil || *args.Days < 1 || *args.Days > 14 || len(args.When) > 2 ||
		args.Unit != nil && *args.Unit != "C" && *args.Unit != "F":
		t.Fatalf("%s: %q: call %q", format, text, c)
	}
}

func checkBooking(t *testing.T, format, text string, c call) {
	t.Helper()
	var args struct {
		Guest *struct {
			Name string `json:"name"`
			Age  int    `json:"age"`
		} `json:"guest"`
		Rooms []struct {
			Kind *string `json:"kind"`
			Beds []int   `json:"beds"`
		} `json:"rooms"`
		Code  string         `json:"code"`
		Extra map[string]any `json:"extra"`
	}
	d := json.NewDecoder(strings.NewReader(c.Args))
	d.UseNumber()
	d.DisallowUnknownFields()
	if err := d.Decode(&args); err != nil {
		t.Fatalf("%s: %q: %s: %v", format, text, c.Args, err)
	}
	ok := args.Guest != nil && utf8.RuneCountInString(args.Guest.Name) >= 1 && utf8.RuneCountInString(args.Guest.Name) <= 5 && args.Guest.Age >= 0 && args.Guest.Age < 100 &&
		len(args.Rooms) >= 1 && len(args.Rooms) <= 2 && regexp.MustCompile("^[A-Z<|]{2,6}$").MatchString(args.Code)
	for _, r := range args.Rooms {
		ok = ok && (r.Kind == nil || *r.Kind == `a"b` || *r.Kind == "7") && r.Beds != nil && len(r.Beds) <= 2
		for _, n := range r.Beds {
			ok = ok && n >= 1 && n <= 3
		}
	}
	if !ok {
		t.Fatalf("%s: %q: call %q", format, text, c)
	}
}

// TestSpokenNames: only the tools that are named are called, and a strict tool's schema is refused by
// name.
func TestSpokenNames(t *testing.T) {
	f := Detect(hermesOpen)
	rules := &grammar.Rules{}
	s := &Speaker{Rules: rules, Spell: grammar.Text, Tools: []byte(spokenTools), Names: []string{"now"}}
	e, err := f.Calls(s)
	if err != nil {
		t.Fatal(err)
	}
	if text := randomAnswer(t, rules, e, rand.New(rand.NewPCG(1, 1))); !strings.Contains(text, `"now"`) || strings.Contains(text, "weather") {
		t.Error(text)
	}
	const bad = `[{"type":"function","function":{"name":"f","parameters":{"not":{}}}},{"type":"function","function":{"name":"g","strict":true,"parameters":{"not":{}}}}]`
	if _, err := f.Calls(&Speaker{Rules: rules, Spell: grammar.Text, Tools: []byte(bad)}); err == nil || err.(*ToolError).Index != 1 || !strings.Contains(err.Error(), `"not"`) {
		t.Error(err)
	}
}

// TestFree: text before calls, and no calls, are allowed where the model decides.
func TestFree(t *testing.T) {
	for name, sign := range signs {
		f := Detect(sign)
		rules := &grammar.Rules{}
		s := &Speaker{Rules: rules, Spell: grammar.Text, Tools: []byte(spokenTools)}
		calls, err := f.Calls(s)
		if err != nil {
			t.Fatal(err)
		}
		g, err := grammar.New(rules, rules.Add(f.Answer(s, f.Free(s, calls), false)), bytesOnly)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text := "It is so.\nYes < no"
		if f.harmony {
			text = harmonyChannel + "final" + harmonyMessage + text
		}
		if m := g.Matcher(); m.Text(text) != nil || !m.Complete() {
			t.Errorf("%s: text alone does not fit", name)
		}
	}
}
