package schema

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"krater/stages/text/grammar"
)

// randomSchema makes a schema of the keywords that are supported.
func randomSchema(rng *rand.Rand, depth int) string {
	if depth == 0 || rng.IntN(6) == 0 {
		return []string{`{"type":"integer","minimum":-7,"maximum":120}`, `{"type":"string","maxLength":5}`, `{"type":"boolean"}`, `{"enum":["a","b\"c",null,3]}`, `{"type":"null"}`,
			`{"type":"number","exclusiveMinimum":0.25,"maximum":17.5}`, `{"type":"string","pattern":"^[a-c]{1,3}x?$"}`, `{"const":{"k":[1,"é"]}}`, `{"$ref":"#/$defs/leaf"}`,
			`{"type":"string","minLength":2,"pattern":"a"}`, `{"type":["integer","null"],"minimum":3}`, `{"type":"string","format":"date"}`}[rng.IntN(12)]
	}
	sub := func() string { return randomSchema(rng, depth-1) }
	switch rng.IntN(6) {
	case 0:
		return fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d}`, sub(), rng.IntN(3), 2+rng.IntN(3))
	case 1:
		return fmt.Sprintf(`{"type":"array","prefixItems":[%s,%s],"items":%s,"minItems":%d,"maxItems":4}`, sub(), sub(), sub(), rng.IntN(4))
	case 2:
		return fmt.Sprintf(`{"anyOf":[%s,%s]}`, sub(), sub())
	case 3:
		return fmt.Sprintf(`{"type":"object","properties":{"a":%s,"b":%s},"anyOf":[{"required":["a"]},{"required":["b"]}],"additionalProperties":%s}`, sub(), sub(), sub())
	case 4:
		return fmt.Sprintf(`{"allOf":[{"type":"object","properties":{"a":%s}},{"properties":{"a":true,"c":%s},"required":["a"]}],"additionalProperties":true}`, sub(), sub())
	}
	return fmt.Sprintf(`{"type":"object","properties":{"n":%s,"aa":%s,"q\"":%s},"required":["aa"],"additionalProperties":false}`, sub(), sub(), sub())
}

var words = []string{`{"`, `":`, `", "`, `","`, `"}`, `}}`, `]}`, `],`, `": `, `a"`, `12`, `.5`, `-1`, `null`, `true`, `"a":`, `é`, `[{"`, `aa`, `abc`, `2026-`}

// jsonTokens is a vocabulary of bytes, an end, and tokens of several bytes.
var jsonTokens = func() *grammar.Vocabulary {
	return grammar.NewVocabulary(257+len(words), func(id int32) []byte {
		switch {
		case id < 256:
			return []byte{byte(id)}
		case id == 256:
			return nil
		}
		return []byte(words[id-257])
	}, []int32{256})
}()

// randomText follows random masks to the end of a text; false if it did not end.
func randomText(t *testing.T, g *grammar.Grammar, rng *rand.Rand, most int) (string, bool) {
	t.Helper()
	m := g.Matcher()
	var b strings.Builder
	for i := range most {
		mask, err := m.Mask()
		if err != nil {
			t.Fatal(err)
		}
		var allowed []int32
		for id := range int32(32 * len(mask)) {
			if mask[id/32]>>(id%32)&1 == 1 {
				allowed = append(allowed, id)
			}
		}
		if len(allowed) == 0 {
			t.Fatalf("no token may follow %s", b.String())
		}
		token := allowed[rng.IntN(len(allowed))]
		for _, id := range allowed { // a text should end
			if id == 256 || rng.IntN(3) == 0 && i > 20 && (id == '"' || id == '}' || id == ']') {
				token = id
			}
		}
		if err := m.Accept(token); err != nil {
			t.Fatal(err)
		}
		switch {
		case token == 256:
			return b.String(), true
		case token < 256:
			b.WriteByte(byte(token))
		default:
			b.WriteString(words[token-257])
		}
	}
	return b.String(), false
}

// TestRandomTexts: whatever tokens are chosen under the masks of a schema, the text satisfies it.
func TestRandomTexts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	ended := 0
	for range 150 {
		s := randomSchema(rng, 3)
		s = strings.TrimSuffix(s, "}") + `,"$defs":{"leaf":{"type":"array","items":{"anyOf":[{"type":"boolean"},{"$ref":"#/$defs/leaf"}]},"maxItems":2}}}`
		rules := &grammar.Rules{}
		e, err := Add(rules, []byte(s), Options{})
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		g, err := grammar.New(rules, rules.Add(e), jsonTokens)
		if err != nil {
			if strings.Contains(err.Error(), "no text fits") {
				continue
			}
			t.Fatalf("%s: %v", s, err)
		}
		root, _ := parse([]byte(s))
		for range 4 {
			text, done := randomText(t, g, rng, 400)
			if !done {
				continue
			}
			ended++
			v, err := parse([]byte(text))
			if err != nil && strings.Contains(err.Error(), "duplicate") {
				continue // a grammar does not remember the names that came
			}
			if err != nil {
				t.Fatalf("%s: %s: %v", s, text, err)
			}
			if c := newCompiler(&grammar.Rules{}, root, Options{}); !c.satisfies(v, root, 0) || c.err != nil {
				t.Errorf("%s does not hold for %s (%v)", s, text, c.err)
			}
		}
	}
	if ended < 300 {
		t.Errorf("only %d texts ended", ended)
	}
}

func FuzzSchema(f *testing.F) {
	for _, c := range cases {
		f.Add(c.schema, false)
	}
	f.Fuzz(func(t *testing.T, text string, closed bool) {
		if len(text) > 1<<11 {
			t.Skip()
		}
		g, err := compileSchema(text, Options{Closed: closed})
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok && !errors.Is(err, grammar.ErrSource) {
				t.Fatal(err)
			}
			return
		}
		m := g.Matcher()
		rng := rand.New(rand.NewPCG(uint64(len(text)), 1))
		for range 30 {
			mask, err := m.Mask()
			if errors.Is(err, grammar.ErrLimit) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var allowed []int32
			for id := range int32(256) {
				if mask[id/32]>>(id%32)&1 == 1 {
					allowed = append(allowed, id)
				}
			}
			if len(allowed) == 0 {
				if !m.Complete() {
					t.Fatal("no token may come")
				}
				return
			}
			if err := m.Accept(allowed[rng.IntN(len(allowed))]); err != nil && !errors.Is(err, grammar.ErrLimit) {
				t.Fatal(err)
			}
		}
	})
}
