package source

import (
	"slices"
	"testing"

	"krater/stages/text/tokenizer"
)

// TestMadeTokenizer: every token of a made model has a text of its own, and bytes are
// tokens.
func TestMadeTokenizer(t *testing.T) {
	for _, n := range []int{200, 256, 1000} {
		s := &Source{Name: "made", Files: MemoryFiles{"tokenizer.json": MadeTokenizer(n)}}
		tok, _, err := s.Tokenizer()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for id := range int32(n) {
			text, ok := tok.TokenBytes(id)
			if !ok || len(text) == 0 || seen[string(text)] {
				t.Fatalf("token %d of %d: %q", id, n, text)
			}
			seen[string(text)] = true
		}
		if tok.VocabSize() != n || n >= 256 && !slices.Equal(tok.Encode("a\x00é", tokenizer.EncodeOptions{}), []int32{'a', 0, 0xc3, 0xa9}) {
			t.Errorf("%d tokens: %d, %v", n, tok.VocabSize(), tok.Encode("a\x00é", tokenizer.EncodeOptions{}))
		}
	}
}
