package direct_test

import (
	"testing"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/calibration"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/ppl"
	"krater/stages/weights/cache"
)

// requantise replaces all routed experts of m by quantised and widened ones.
func requantise(t *testing.T, m *opened, dev load.Device, src cache.Source) {
	t.Helper()
	cfg := m.model.Parts.Config
	h, f := cfg.Hidden, cfg.MoE.FF
	wrap := func(w []float32, rows, cols int) device.Mat {
		buf, err := dev.Wrap(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(buf.Free)
		return device.NewMat(buf, tensor.F32, rows, cols)
	}
	for _, g := range m.model.Parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if !g.MoE(layer) {
				continue
			}
			bank := g.Bank(layer).Routed
			for e := range bank {
				q13, q2, err := src.Expert(layer, e)
				if err != nil {
					t.Fatal(err)
				}
				both := q13.Dequantize()
				bank[e] = device.Expert{Gate: wrap(both[:f*h], f, h), Up: wrap(both[f*h:], f, h), Down: wrap(q2.Dequantize(), h, f)}
			}
		}
	}
}

// TestTinyQuantised measures the default model with INT3, INT4 and INT8 experts, groups
// of 64, against itself unquantised: KL divergence of each method, as a share of
// plain rounding's (of INT4, for INT8). Measured are the first tokens of heldout.txt; calibrated is
// with tokens from the second half of the same file, which are not measured.
func TestTinyQuantised(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of forward passes: not in the short suite")
	}
	const window, measured, learned = 512, 4096, 16384
	ids := heldout(t)
	half := len(ids) / 2
	test, calibrate := ids[:measured], ids[half:half+learned]
	dev := processor(t, 2)
	options := load.Options{Limits: stages.Limits{Tokens: window, Seqs: 1, LogitRows: window, Blocks: 32, BlockTokens: 16}, KVType: tensor.F32}
	reference := open(t, dev, tiny, "config.json", options)
	cfg := reference.model.Parts.Config
	seen, err := calibration.New(cfg, reference.set, 0, len(cfg.Layers))
	if err != nil {
		t.Fatal(err)
	}
	for from := 0; from < len(calibrate); from += window {
		part := []*drive.Sequence{{Prompt: calibrate[from : from+window]}}
		if err := drive.Run(reference.model, part, drive.Options{Probe: seen}); err != nil {
			t.Fatal(err)
		}
	}
	if err := seen.Err(); err != nil {
		t.Fatal(err)
	}
	var base float64
	for _, x := range []struct {
		e      *tensor.Encoding
		method cache.Method
		limit  float64 // of the KL divergence, as a share of plain rounding's
	}{
		{tensor.INT3, cache.Absmax, 1}, {tensor.INT3, cache.Search, 0.93}, {tensor.INT3, cache.Weighted, 0.93}, {tensor.INT3, cache.Feedback, 0.70},
		{tensor.INT4, cache.Absmax, 1}, {tensor.INT4, cache.Search, 0.70}, {tensor.INT4, cache.Weighted, 0.70}, {tensor.INT4, cache.Feedback, 0.58}, {tensor.INT8, cache.Search, 0.01},
	} {
		m := open(t, dev, tiny, "config.json", options)
		requantise(t, m, dev, &cache.Weights{Config: cfg, Set: reference.set, Format: x.e.By(64), Method: x.method, Stats: seen.Expert})
		r, err := ppl.Against(reference.model, m.model, test, window, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.method == cache.Absmax {
			base = r.MeanKL
		}
		t.Logf("%s %-8s KL %.5f (%.3f of plain), max %.2f, top-1 %.4f, perplexity %.3f (unquantised %.3f)", x.e.Name(), x.method, r.MeanKL, r.MeanKL/base, r.MaxKL, r.Top1, r.Model.Perplexity, r.Reference.Perplexity)
		if !(r.MeanKL > 0) || r.MeanKL > x.limit*base {
			t.Errorf("%s %s: KL %.5f is %.3f of plain rounding's, want at most %.2f", x.e.Name(), x.method, r.MeanKL, r.MeanKL/base, x.limit)
		}
	}
}
