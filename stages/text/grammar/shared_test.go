package grammar

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShared: a grammar that shares with others what its rules allow alone has the same masks with a vocabulary of its
// own. The rules differ in counts, in what follows them, and in rules that they call.
func TestShared(t *testing.T) {
	texts := []string{"a", "b", "c", `"`, `",`, `"}`, `a"`, "ab", "abc", "ba", "1", "12", "1,", "[", "]", "{", "}", ",", `["`, "aaaaaaaa", "é", "\xc3", "\xa9"}
	vocabulary := func() *Vocabulary {
		return NewVocabulary(len(texts)+1, func(id int32) []byte {
			if int(id) == len(texts) {
				return nil
			}
			return []byte(texts[id])
		}, []int32{int32(len(texts))})
	}
	common := vocabulary()
	for i, source := range []string{
		`root ::= "[" s ("," s)* "]"` + "\n" + `s ::= "\"" [a-cé]* "\""`,
		`root ::= "{" s "}"` + "\n" + `s ::= "\"" [a-cé]* "\""`,
		`root ::= "{" s "}"` + "\n" + `s ::= "\"" [ab]* "\""`,
		`root ::= s ("," s){2,5}` + "\n" + `s ::= "\"" [abcé]{3,40} "\""`,
		`root ::= s ("," s){2,5}` + "\n" + `s ::= "\"" [abcé]{3,50} "\""`,
		`root ::= s ("," s){2,5}` + "\n" + `s ::= "\"" [abcé]{30,} "\""`,
		`root ::= v` + "\n" + `v ::= "[" v ("," v)* "]" | "1" "2"? | s` + "\n" + `s ::= "\"" [a-c]* "\""`,
		`root ::= v` + "\n" + `v ::= "[" v ("," v)* "]" | "1" | s` + "\n" + `s ::= "\"" [a-c]* "\""`,
		`root ::= "[" s ("," s)* "]"` + "\n" + `s ::= "\"" [a-cé]* "\""`,
	} {
		rng := rand.New(rand.NewPCG(3, uint64(i)))
		for range 20 {
			a, b := gbnfGrammar(t, source, common).Matcher(), gbnfGrammar(t, source, vocabulary()).Matcher()
			for range 60 {
				got, err := a.Mask()
				if err != nil {
					t.Fatal(err)
				}
				want, err := b.Mask()
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("grammar %d: mask %b, want %b (%v)", i, got, want, err)
				}
				var allowed []int32
				for id := range int32(len(texts)) {
					if want[0]>>id&1 == 1 {
						allowed = append(allowed, id)
					}
				}
				if len(allowed) == 0 {
					break
				}
				id := allowed[rng.IntN(len(allowed))]
				if a.Accept(id) != nil || b.Accept(id) != nil {
					t.Fatal("an allowed token is refused")
				}
			}
		}
	}
	if len(common.shared.list) == 0 {
		t.Error("nothing is shared")
	}
}
