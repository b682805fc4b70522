package grammar

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// byteVocabulary has a token for each byte, some longer ones, one twice, and an end.
func byteVocabulary(words ...string) *Vocabulary {
	texts := make([]string, 256)
	for i := range texts {
		texts[i] = string([]byte{byte(i)})
	}
	texts = append(texts, words...)
	return NewVocabulary(len(texts)+2, func(id int32) []byte {
		if int(id) >= len(texts) {
			return nil
		}
		return []byte(texts[id])
	}, []int32{int32(len(texts))})
}

var testWords = []string{`{"`, `"}`, `":`, `", "`, `",`, "ab", "abc", "aa", "aaa", "aaaa", "ba", "12", "123", "1,", `"a`, `a"`, `a":`, "}}", "]]", `]}`, "é", "日本", "\xe6\x97", "\xa5x", " ", "  ", "true", "false", "null", "ab"}

func gbnfGrammar(t testing.TB, source string, v *Vocabulary) *Grammar {
	t.Helper()
	rules, root, err := ParseGBNF(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	g, err := New(rules, root, v)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return g
}

func regexpGrammar(t testing.TB, source string, v *Vocabulary, o RegexpOptions) *Grammar {
	t.Helper()
	e, err := ParseRegexp(source, o)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	rules := &Rules{}
	g, err := New(rules, rules.Add(e), v)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return g
}

func fits(g *Grammar, text string) bool {
	m := g.Matcher()
	return m.Text(text) == nil && m.Complete()
}

const jsonGBNF = `
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws # an object
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
`

func TestGBNF(t *testing.T) {
	v := byteVocabulary(testWords...)
	for _, c := range []struct {
		source   string
		yes, not []string
	}{
		{jsonGBNF, []string{`{}`, `{"a": [1,2.5e3,{"b":null}], "é":"\u00e9"}`, "{\n  \"a\":true}"}, []string{``, `[]`, `{"a"}`, `{"a":01}`, `{"a":1,}`, "{\"\xff\":1}"}},
		{"root ::= \"a\" root | \"\"", []string{"", "a", "aaaa"}, []string{"b", "ab"}},
		{"root ::= a\na ::= \"(\" a \")\" | b\nb ::= \"[\" a \"]\" | \"x\"", []string{"x", "([x])", "((([[x]])))"}, []string{"(x]", "(", "()"}},
		{"root ::= a | b\na ::= \"(\" (a|b) \")\" | \"\"\nb ::= \"(\" (a|b) \"]\" | \"\"", []string{"", "()", "(((]]]", "(()]"}, []string{"(", "]", "())"}},
		{"root ::= [a-z]{2,4}", []string{"ab", "abcd"}, []string{"a", "abcde", "AB"}},
		{"root ::= (\"a\" | \"aa\"){3,100}", []string{"aaa", strings.Repeat("a", 200)}, []string{"aa", strings.Repeat("a", 201)}},
		{"root ::= \"é\" [^é] .", []string{"éx日", "é\n!"}, []string{"ééx", "éxy!"}},
		{"root ::= (\"a\"?){2,3} (\"\" | \"b\"*)*", []string{"", "a", "aaa", "aab", "bb"}, []string{"aaaa", "aaaab", "ba"}},
		{"root ::= x*\nx ::= \"a\" | y\ny ::= \"b\"?", []string{"", "ab", "bbaa"}, []string{"c"}},
	} {
		g := gbnfGrammar(t, c.source, v)
		for _, s := range c.yes {
			if !fits(g, s) {
				t.Errorf("%s: %q does not fit", c.source, s)
			}
		}
		for _, s := range c.not {
			if fits(g, s) {
				t.Errorf("%s: %q fits", c.source, s)
			}
		}
	}
}

func TestSourceErrors(t *testing.T) {
	v := byteVocabulary()
	for source, want := range map[string]string{
		"root ::= root \"a\" | \"b\"":                       "left recursion",
		"root ::= a\na ::= b? a \"x\" | \"y\"\nb ::= \"q\"": "left recursion",
		"root ::= x":                            `rule "x" is used`,
		"rot ::= \"x\"":                         "no rule \"root\"",
		"root ::= \"x":                          "ends within",
		"root ::= (\"x\"":                       "a ) is missing",
		"root ::= \"x\" )":                      "no part",
		"root ::= \"x\"{3,2}":                   "larger count",
		"root ::= \"x\"\nroot ::= \"y\"":        "twice",
		"root ::= \"x\" root":                   "no text fits",
		"root ::= \"\\q\"":                      "escape is unknown",
		"root ::= " + strings.Repeat("(", 1000): "nested too deep",
	} {
		rules, root, err := ParseGBNF(source)
		if err == nil {
			_, err = New(rules, root, v)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", clip(source), err, want)
		}
	}
}

var testPatterns = []string{`abc`, `[a-c]+`, `(a|b)*c?`, `a{2,5}`, `(ab|a)(bc|c)?`, `\d{4}-\d\d`, `[^a]*`, `.*a.{3}`, `(a*)*b`, `é|日本?`, `(?i)aB`, `\w+@\w+\.\w{2,3}`, `a{0,40}`, `(aa|aaa){2,20}`, `\u00e9x`, `[\s\S]*`, `(x|(y|z){2,3}){1,4}`}

// TestRegexp compares with package regexp on texts of all kinds.
func TestRegexp(t *testing.T) {
	v := byteVocabulary(testWords...)
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "c", "aa", "é", "日", "本", "1", "2026", "-", "@", ".", "A", "x", "y", "z", "\n", "B"}
	for _, p := range testPatterns {
		full, err := regexp.Compile(`\A(?:` + GoRegexp(p) + `)\z`)
		if err != nil {
			t.Fatal(err)
		}
		search := regexp.MustCompile(GoRegexp(p))
		g, s := regexpGrammar(t, p, v, RegexpOptions{}), regexpGrammar(t, p, v, RegexpOptions{Search: true})
		for range 400 {
			text := ""
			for range rng.IntN(12) {
				text += pieces[rng.IntN(len(pieces))]
			}
			if got := fits(g, text); got != full.MatchString(text) {
				t.Errorf("%s, %q: %v", p, text, got)
			}
			if got := fits(s, text); got != search.MatchString(text) {
				t.Errorf("search for %s in %q: %v", p, text, got)
			}
		}
	}
	for _, p := range []string{`^a|b$`, `(^x$)|y`, `^(a|b)+$`, `a$`} {
		g, search := regexpGrammar(t, p, v, RegexpOptions{Search: true}), regexp.MustCompile(p)
		for _, text := range []string{"", "a", "b", "ab", "ba", "x", "xx", "zay", "bz", "abab"} {
			if got := fits(g, text); got != search.MatchString(text) {
				t.Errorf("search for %s in %q: %v", p, text, got)
			}
		}
	}
	for _, p := range []string{`a(?=b)`, `(a)\1`, `\bx`, `(^|,)a`, `(`, `a**`} {
		if _, err := ParseRegexp(p, RegexpOptions{}); err == nil {
			t.Errorf("%s is read", p)
		}
	}
}

// plainMask is Mask token by token.
func plainMask(m *Matcher) []uint32 {
	mask := make([]uint32, m.g.vocab.words())
	for id := range int32(len(m.g.vocab.texts)) {
		if m.Clone().Accept(id) == nil {
			mask[id/32] |= 1 << (id % 32)
		}
	}
	return mask
}

// checkMasks follows random texts and compares each mask with the tokens that are taken.
func checkMasks(t *testing.T, name string, g *Grammar, rng *rand.Rand, tokens int) {
	t.Helper()
	m := g.Matcher()
	for range tokens {
		mask, err := m.Mask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := plainMask(m)
		var allowed []int32
		for id := range int32(len(g.vocab.texts)) {
			got, wanted := mask[id/32]>>(id%32)&1, want[id/32]>>(id%32)&1
			if got != wanted {
				t.Fatalf("%s: token %d %q: mask %d, taken %d", name, id, g.vocab.texts[id], got, wanted)
			}
			if got == 1 {
				allowed = append(allowed, id)
			}
		}
		if len(allowed) == 0 {
			if !m.Finished() {
				t.Fatalf("%s: no token may come", name)
			}
			return
		}
		if err := m.Accept(allowed[rng.IntN(len(allowed))]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestMasks(t *testing.T) {
	v := byteVocabulary(testWords...)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 6 {
		checkMasks(t, "json", gbnfGrammar(t, jsonGBNF, v), rng, 40)
		checkMasks(t, "ambiguous", gbnfGrammar(t, "root ::= a | b\na ::= \"(\" (a|b) \")\" | \"x\"\nb ::= \"(\" (a|b) \"]\" | \"x\"", v), rng, 30)
		checkMasks(t, "count", gbnfGrammar(t, "root ::= \"[\" x{2,9} \"]\"\nx ::= [ab] | \"c\" x{3,200} \"d\"", v), rng, 40)
		for _, p := range testPatterns {
			checkMasks(t, p, regexpGrammar(t, p, v, RegexpOptions{}), rng, 12)
		}
	}
}

// TestConcurrentUse: matchers of one grammar share its automaton, which is begun again now and then.
func TestConcurrentUse(t *testing.T) {
	g := gbnfGrammar(t, jsonGBNF, byteVocabulary(testWords...))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			m, rng := g.Matcher(), rand.New(rand.NewPCG(1, uint64(i)))
			for n := range 60 {
				mask, err := m.Mask()
				if err != nil {
					t.Error(err)
					return
				}
				var allowed []int32
				for id := range int32(len(g.vocab.texts)) {
					if mask[id/32]>>(id%32)&1 == 1 {
						allowed = append(allowed, id)
					}
				}
				if len(allowed) == 0 {
					return
				}
				if err := m.Accept(allowed[rng.IntN(len(allowed))]); err != nil {
					t.Error(err)
					return
				}
				if n%16 == 15 {
					g.mu.Lock()
					g.auto = nil // as when it has grown
					g.mu.Unlock()
				}
			}
		})
	}
	all.Wait()
}

// TestAdoptAfterLimit: a call of another matcher that came to the limit costs nobody else a state.
func TestAdoptAfterLimit(t *testing.T) {
	v := byteVocabulary()
	g := gbnfGrammar(t, `root ::= "ab"`, v)
	m := g.Matcher()
	if err := m.Accept('a'); err != nil {
		t.Fatal(err)
	}
	g.auto = newAutomaton(g.prog, v)
	g.auto.fresh = maxFresh
	mask, err := m.Mask()
	if err != nil || len(mask) != v.words() || mask['b'/32]>>('b'%32)&1 != 1 || m.auto != g.auto {
		t.Errorf("%v, %v", mask, err)
	}
}

// TestSharedStates: sets that differ in short characters have the states of long ones in common, and a set of all but one
// long character has its own.
func TestSharedStates(t *testing.T) {
	states := func(sets ...Set) int {
		rules, next := &Rules{}, Text("x")
		var list []*Expr
		for _, s := range sets {
			list = append(list, Seq(Class(s), next))
		}
		g, err := New(rules, rules.Add(Alt(list...)), byteVocabulary())
		if err != nil {
			t.Fatal(err)
		}
		return len(g.prog.states)
	}
	without := func(c rune) Set { return Any.Minus(Runes(c)) }
	one, two, three := states(without('a'), without('b')), states(without('a'), without('b'), without('c')), states(without('a'), without('b'), without('\u20ac'))
	if two != one+1 || three <= two {
		t.Errorf("%d states for two sets, %d for three, %d where one lacks a long character", one, two, three)
	}
}
