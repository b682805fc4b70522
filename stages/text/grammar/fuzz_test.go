package grammar

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// follow takes random tokens that masks allow. Whatever the grammar, a token that a mask allows is
// taken, and a mask is empty at the end only.
func follow(t *testing.T, g *Grammar, rng *rand.Rand, tokens int) {
	t.Helper()
	m := g.Matcher()
	for range tokens {
		mask, err := m.Mask()
		if errors.Is(err, ErrLimit) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var allowed []int32
		for id := range int32(len(g.vocab.texts)) {
			if mask[id/32]>>(id%32)&1 == 1 {
				allowed = append(allowed, id)
			}
		}
		if len(allowed) == 0 {
			if !m.Finished() {
				t.Fatal("no token may come")
			}
			return
		}
		if err := m.Accept(allowed[rng.IntN(len(allowed))]); err != nil && !errors.Is(err, ErrLimit) {
			t.Fatal(err)
		}
	}
}

func fuzzRules(t *testing.T, v *Vocabulary, rules *Rules, root int32) {
	g, err := New(rules, root, v)
	if err != nil {
		if !errors.Is(err, ErrSource) {
			t.Fatal(err)
		}
		return
	}
	rng := rand.New(rand.NewPCG(uint64(rules.Len()), 1))
	follow(t, g, rng, 20)
	if rules.Len() < 8 {
		checkMasksUnlessLimit(t, g, rng)
	}
}

// checkMasksUnlessLimit compares a few masks with the tokens that are taken.
func checkMasksUnlessLimit(t *testing.T, g *Grammar, rng *rand.Rand) {
	m := g.Matcher()
	for range 4 {
		mask, err := m.Mask()
		if err != nil {
			return
		}
		var allowed []int32
		for id := range int32(len(g.vocab.texts)) {
			err := m.Clone().Accept(id)
			if errors.Is(err, ErrLimit) {
				return
			}
			if got := mask[id/32]>>(id%32)&1 == 1; got != (err == nil) {
				t.Fatalf("token %d: mask %v, %v", id, got, err)
			}
			if err == nil {
				allowed = append(allowed, id)
			}
		}
		if len(allowed) == 0 || m.Accept(allowed[rng.IntN(len(allowed))]) != nil {
			return
		}
	}
}

func FuzzGBNF(f *testing.F) {
	f.Add(jsonGBNF)
	for _, s := range []string{"root ::= a*\na ::= [^\\x00-\\x1f]{2,300} | \"\\u00e9\" # c", "root ::= (\"a\"|\"aa\"){1,20} root | \"\"", "root ::= ((((\"\"*)*)*)*)* x?\nx ::= x2 x2\nx2 ::= . .?"} {
		f.Add(s)
	}
	v := byteVocabulary(testWords...)
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 1<<12 {
			t.Skip()
		}
		rules, root, err := ParseGBNF(source)
		if err != nil {
			if !errors.Is(err, ErrSource) {
				t.Fatal(err)
			}
			return
		}
		fuzzRules(t, v, rules, root)
	})
}

func FuzzRegexp(f *testing.F) {
	for _, p := range testPatterns {
		f.Add(p, true)
	}
	v := byteVocabulary(testWords...)
	f.Fuzz(func(t *testing.T, source string, search bool) {
		if len(source) > 1<<10 {
			t.Skip()
		}
		e, err := ParseRegexp(source, RegexpOptions{Search: search})
		if err != nil {
			if !errors.Is(err, ErrSource) {
				t.Fatal(err)
			}
			return
		}
		rules := &Rules{}
		fuzzRules(t, v, rules, rules.Add(e))
	})
}
