package direct_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/load"
	"krater/stages/ppl"
	"krater/stages/text/tokenizer"
)

const tiny = "../../models/krater-tiny"

// heldout is the text that the default model was not trained on, as tokens.
func heldout(t testing.TB) []int32 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tiny, "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(os.DirFS(tiny))
	if err != nil {
		t.Fatal(err)
	}
	return tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: true})
}

// TestTinyGolden compares last logits and greedy ids, up to the end mark, of the
// default model's own golden.
func TestTinyGolden(t *testing.T) {
	lim := stages.Limits{Tokens: 64, Seqs: 3, Blocks: 48, BlockTokens: 16}
	for _, kv := range []tensor.DType{tensor.F32, tensor.BF16} {
		m := open(t, processor(t, 2), tiny, "config.json", load.Options{Limits: lim, KVType: kv, Partition: load.Even(7, 2)})
		o := compare.Options{Batch: 3, Chunk: 5}
		if kv == tensor.BF16 {
			// Only the ids must agree: the rounded cache moves logits by more than 1e-3.
			o.Tolerance = 1
		}
		agree(t, m, tiny, o)
	}
}

// TestTinyPerplexity measures heldout.txt as golden.json defines it.
func TestTinyPerplexity(t *testing.T) {
	if testing.Short() {
		t.Skip("12,792 tokens: not in the short suite")
	}
	data, err := os.ReadFile(filepath.Join(tiny, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Perplexity struct {
			Bytes, Tokens, Window, Predictions int
			MeanNLL                            float64 `json:"mean_nll"`
			Value                              float64
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	want := golden.Perplexity
	text, err := os.ReadFile(filepath.Join(tiny, "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	text = text[:want.Bytes]
	for !utf8.Valid(text) {
		text = text[:len(text)-1]
	}
	tok, err := tokenizer.Load(os.DirFS(tiny))
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: true})
	lim := stages.Limits{Tokens: want.Window, Seqs: 1, LogitRows: want.Window, Blocks: 32, BlockTokens: 16}
	for kv, allowed := range map[tensor.DType]float64{
		// float32 throughout: 12,767 log-likelihoods, each off by 1e-4 at most and in
		// both directions.
		tensor.F32: 1e-5,
		// A BF16 cache rounds each cached value by 2^-9 at most; the mean may move by
		// that share of itself, not by more.
		tensor.BF16: want.MeanNLL / 512,
	} {
		m := open(t, processor(t, 2), tiny, "config.json", load.Options{Limits: lim, KVType: kv})
		r, err := ppl.Measure(m.model, ids, want.Window, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("KV %s: %+v", kv, r)
		if r.Tokens != want.Tokens || r.Predictions != want.Predictions {
			t.Errorf("KV %s: %d tokens, %d predictions; the golden has %d and %d", kv, r.Tokens, r.Predictions, want.Tokens, want.Predictions)
		}
		if !(math.Abs(r.MeanNLL-want.MeanNLL) <= allowed) || math.Abs(r.Perplexity-math.Exp(r.MeanNLL)) > 1e-9 {
			t.Errorf("KV %s: mean nll %.8f (perplexity %.5f), the golden has %.8f (%.5f)", kv, r.MeanNLL, r.Perplexity, want.MeanNLL, want.Value)
		}
	}
}
