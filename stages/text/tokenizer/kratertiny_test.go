package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func kraterTiny(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load(os.DirFS(filepath.Join(root, "models/krater-tiny")))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The model's golden file says what its trainer made of rendered prompts.
func TestKraterTinyGolden(t *testing.T) {
	tok := kraterTiny(t)
	data, err := os.ReadFile(filepath.Join(root, "models/krater-tiny/golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Prompts []struct {
			Rendered   string
			InputIDs   []int32 `json:"input_ids"`
			GreedyIDs  []int32 `json:"greedy_ids"`
			StopsAfter int     `json:"stops_after"`
			Answer     string
			GreedyText string `json:"greedy_text"`
		}
		Perplexity struct{ Bytes, Tokens int }
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Prompts) == 0 {
		t.Fatal("no prompts")
	}
	for _, p := range golden.Prompts {
		if got := tok.Encode(p.Rendered, EncodeOptions{ParseSpecial: true}); !slices.Equal(got, p.InputIDs) {
			t.Errorf("%q: %v, want %v", p.Rendered, got, p.InputIDs)
		}
		if got := tok.Decode(p.GreedyIDs, false); got != p.GreedyText {
			t.Errorf("decoded %q, want %q", got, p.GreedyText)
		}
		if got := streamed(tok, p.GreedyIDs[:p.StopsAfter], true); got != p.Answer {
			t.Errorf("streamed %q, want %q", got, p.Answer)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "models/krater-tiny/heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	cut := string(text[:golden.Perplexity.Bytes])
	if got := len(tok.Encode(cut, EncodeOptions{ParseSpecial: true})); got != golden.Perplexity.Tokens {
		t.Errorf("heldout.txt: %d tokens, want %d", got, golden.Perplexity.Tokens)
	}
}

func TestKraterTinySpecials(t *testing.T) {
	tok := kraterTiny(t)
	bos, ok := tok.BOS()
	if !ok || bos != 0 || !tok.AddBOS() {
		t.Errorf("BOS %d %v, AddBOS %v; want 0, true, true", bos, ok, tok.AddBOS())
	}
	if eos, ok := tok.EOS(); !ok || eos != 1 {
		t.Errorf("EOS %d %v; want 1, true", eos, ok)
	}
	if n := tok.VocabSize(); n != 8192 {
		t.Errorf("VocabSize %d, want 8192", n)
	}
	plain := tok.Encode("a lighthouse", EncodeOptions{})
	if got := tok.Encode("a lighthouse", EncodeOptions{AddSpecial: true}); !slices.Equal(got, append([]int32{bos}, plain...)) {
		t.Errorf("AddSpecial: %v, want %d before %v", got, bos, plain)
	}
}
