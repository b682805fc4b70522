package direct_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare/goldens"
	"krater/stages/drive"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/ppl"
)

// kept holds the formats of a model's cache and kv_b.
type kept struct {
	kv    tensor.DType
	bits  int // of kv_b; 0: as it is
	group int
}

func (k kept) String() string { return fmt.Sprintf("KV %s, kv_b %d bits g%d", k.kv, k.bits, k.group) }

func (k kept) options() load.Options {
	lim := limits
	lim.Tokens = 256 // the longest prompt in one go
	return load.Options{Limits: lim, KVType: k.kv, Precision: load.Precision{KVB: tensor.Integers(k.bits).By(k.group)}}
}

// followed are the logits of the last token of every text and of those that follow
// it, which are decoded one by one.
func followed(t testing.TB, m *opened, texts, follow [][]int32) (rows [][]float32) {
	t.Helper()
	lim := m.model.Limits()
	blocks := make([]int32, lim.Blocks/lim.Seqs)
	for i := range blocks {
		blocks[i] = int32(lim.Blocks - 1 - i)
	}
	for i, prompt := range texts {
		step := func(tokens []int32, pos int, decode bool) {
			b := &stages.Step{Tokens: tokens, Spans: []stages.Span{{Decode: decode, Want: true,
				Span: device.Span{Len: len(tokens), Pos: pos, Blocks: blocks}}}}
			if err := m.model.Step(b, nil, func(st *stages.State) error {
				rows = append(rows, slices.Clone(st.LogitRow(0)))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		step(prompt, 0, false)
		for j, id := range follow[i] {
			step([]int32{id}, len(prompt)+j, true)
		}
	}
	return rows
}

// greedy are the tokens that a model appends to texts.
func greedy(t testing.TB, m *opened, texts [][]int32, n int) (out [][]int32) {
	t.Helper()
	seqs := make([]*drive.Sequence, len(texts))
	for i := range texts {
		seqs[i] = &drive.Sequence{Prompt: texts[i], New: n}
	}
	if err := drive.Run(m.model, seqs, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, q := range seqs {
		out = append(out, q.Out)
	}
	return out
}

// apart is the distance of two lists of rows, as a share of the second's norm, and
// the share of rows with the same largest logit.
func apart(got, want [][]float32) (distance, top1 float64) {
	var diff, norm float64
	same := 0
	for i, row := range want {
		for j, v := range row {
			d := float64(got[i][j]) - float64(v)
			diff += d * d
			norm += float64(v) * float64(v)
		}
		if drive.Argmax(got[i]) == drive.Argmax(row) {
			same++
		}
	}
	return math.Sqrt(diff / norm), float64(same) / float64(len(want))
}

// kvCase is a case of TestKVPrecision.
type kvCase struct {
	name string
	kept
	measured float64
}

// kvCases are models with what they are kept in.
// measured is how far their logits were from those with a BF16 cache and kv_b as it
// is, as a share of the logits; half as much again is allowed. (The goldens' weights
// are random, so their logits lie close together.)
var kvCases = []kvCase{
	{"krater-tiny", kept{kv: tensor.F8E4M3}, 0.0948},
	{"krater-tiny", kept{kv: tensor.I8}, 0.0293},
	{"krater-tiny", kept{kv: tensor.BF16, bits: 8, group: 64}, 0.0213},
	{"krater-tiny", kept{kv: tensor.BF16, bits: 4, group: 64}, 0.101},
	{"krater-tiny", kept{kv: tensor.F8E4M3, bits: 8}, 0.0952},
	{"deepseek_v2_lite", kept{kv: tensor.F8E4M3}, 0.112},
	{"deepseek_v2_lite", kept{kv: tensor.I8}, 0.0209},
	{"deepseek_v2_lite", kept{kv: tensor.BF16, bits: 8, group: 64}, 0.028},
	{"deepseek_v2_lite", kept{kv: tensor.BF16, bits: 4, group: 64}, 0.303},
	{"deepseek_v2", kept{kv: tensor.F8E4M3}, 0.121},
	{"deepseek_v2", kept{kv: tensor.I8}, 0.0204},
	{"deepseek_v2", kept{kv: tensor.BF16, bits: 8, group: 128}, 0.0663},
	{"deepseek_v2", kept{kv: tensor.I8, bits: 4, group: 32}, 0.248},
	{"qwen2", kept{kv: tensor.F8E4M3}, 0.0638},
	{"qwen2", kept{kv: tensor.I8}, 0.0123},
}

// TestKVPrecision: a cache of 8 bits and kv_b in integers move the logits by no more
// than what rounding explains, and the reference operators give the same.
func TestKVPrecision(t *testing.T) {
	dev := processor(t, 2)
	for _, name := range append([]string{"krater-tiny"}, goldens.Names(t)...) {
		if !slices.ContainsFunc(kvCases, func(c kvCase) bool { return c.name == name }) {
			continue
		}
		dir := folder(name)
		all := texts(t, dir, 4)
		plain := open(t, dev, dir, "config.json", kept{kv: tensor.BF16}.options())
		follow := greedy(t, plain, all, 6)
		want := followed(t, plain, all, follow)
		for _, c := range kvCases {
			if c.name != name {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", name, c.kept), func(t *testing.T) {
				got := followed(t, open(t, dev, dir, "config.json", c.options()), all, follow)
				distance, top1 := apart(got, want)
				t.Logf("logits %.2g from BF16, the same largest in %.2f of %d", distance, top1, len(want))
				if !(distance <= 1.5*c.measured) || distance < c.measured/2 {
					t.Errorf("logits are %.3g from those with BF16, measured were %.3g", distance, c.measured)
				}
				ref := open(t, refdevice.Device{}, dir, "config.json", c.options())
				distance, _ = apart(got[:2], followed(t, ref, all[:1], [][]int32{follow[0][:1]}))
				t.Logf("logits %.2g from the reference operators", distance)
				// A rounding may put a few of thousands of values a step further.
				if !(distance <= c.measured/20) {
					t.Errorf("logits are %.3g from the reference operators', rounding to 8 bits moves them by %.3g", distance, c.measured)
				}
			})
		}
	}
}

// TestKVPrecisionIsBitwise: with every precision neither the chunk of a prompt nor
// who else is in a batch changes a bit.
func TestKVPrecisionIsBitwise(t *testing.T) {
	for _, threads := range []int{1, 2} {
		dev := processor(t, threads)
		for _, c := range kvCases {
			if c.name == "deepseek_v2_lite" || threads == 1 && c.name != "krater-tiny" {
				continue // as deepseek_v2
			}
			t.Run(fmt.Sprintf("%s, %s, %d threads", c.name, c.kept, threads), func(t *testing.T) {
				dir := folder(c.name)
				m := open(t, dev, dir, "config.json", c.options())
				all := texts(t, dir, 5)
				want := recorded(t, m.model, all, 1000)
				for _, chunk := range []int{1, 7} {
					for i, got := range recorded(t, m.model, all, chunk) {
						if !slices.Equal(got, want[i]) {
							t.Errorf("chunks of %d: sequence %d differs", chunk, i)
						}
					}
				}
				for i := range all {
					if !slices.Equal(recorded(t, m.model, all[i:i+1], 7)[0], want[i]) {
						t.Errorf("sequence %d alone differs", i)
					}
				}
			})
		}
	}
}

// TestTinyKVAgreement measures on heldout.txt what the default model loses with a
// cache of 8 bits and with kv_b in integers: KL divergence from and top-1 agreement
// with itself on a BF16 cache. Limits are half as much again as was measured.
func TestTinyKVAgreement(t *testing.T) {
	if testing.Short() {
		t.Skip("forward passes over thousands of tokens: not in the short suite")
	}
	const window, measured = 512, 4096
	ids := heldout(t)[:measured]
	dev := processor(t, 2)
	model := func(k kept) *opened {
		o := k.options()
		o.Limits = stages.Limits{Tokens: window, Seqs: 1, LogitRows: window, Blocks: 32, BlockTokens: 16}
		return open(t, dev, tiny, "config.json", o)
	}
	reference := model(kept{kv: tensor.BF16})
	for _, x := range []struct {
		kept
		kl, differ float64 // differ: share of tokens with another largest logit
	}{
		{kept{kv: tensor.F8E4M3}, 0.0346, 0.0797},
		{kept{kv: tensor.I8}, 0.0025, 0.0210},
		{kept{kv: tensor.BF16, bits: 8, group: 64}, 0.0008, 0.0110},
		{kept{kv: tensor.BF16, bits: 4, group: 64}, 0.0323, 0.0822},
	} {
		r, err := ppl.Against(reference.model, model(x.kept).model, ids, window, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: KL %.6f, top-1 %.4f, perplexity %.3f (BF16 %.3f)", x.kept, r.MeanKL, r.Top1, r.Model.Perplexity, r.Reference.Perplexity)
		if !(r.MeanKL > 0) || r.MeanKL > 1.5*x.kl || 1-r.Top1 > 1.5*x.differ {
			t.Errorf("%s: KL %.6f, top-1 %.4f; measured were %.6f and %.4f", x.kept, r.MeanKL, r.Top1, x.kl, 1-x.differ)
		}
	}
}
