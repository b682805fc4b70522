package source

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
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

// TestRanks: a folder without tokenizer.json has its tokenizer in tiktoken.model.
func TestRanks(t *testing.T) {
	var ranks strings.Builder
	for i := range 256 {
		fmt.Fprintf(&ranks, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(i)}), i)
	}
	files := MemoryFiles{
		"tiktoken.model": []byte(ranks.String()),
		"tokenizer_config.json": []byte(`{"auto_map":{"AutoTokenizer":["tokenization_kimi.TikTokenTokenizer",null]},
			"added_tokens_decoder":{"257":{"content":"[EOS]","special":true}},"eos_token":"[EOS]"}`),
	}
	s := &Source{Name: "made", Files: files}
	tok, _, err := s.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := tok.EOS(); id != 257 || tok.VocabSize() != 512 || !s.HasTokenizer() || s.TokenizerSize() == 0 {
		t.Errorf("EOS %d, %d tokens, %d bytes", id, tok.VocabSize(), s.TokenizerSize())
	}
	files["tiktoken.model"] = []byte("x")
	if _, _, err := (&Source{Name: "made", Files: files}).Tokenizer(); err == nil || !strings.Contains(err.Error(), "model made: tiktoken.model: line 1") {
		t.Error(err)
	}
}
