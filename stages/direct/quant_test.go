package direct_test

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/calibration"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/ppl"
	"krater/stages/text/tokenizer"
	"krater/stages/weights/quant"
)

// quantiser gives the three matrices of an expert: w13 is gate and up joined.
type quantiser func(t *testing.T, layer, expert int, w13, w2 []float32) (q13, q2 *quant.Matrix)

// requantise replaces all routed experts of m by quantised and widened ones.
func requantise(t *testing.T, m *opened, dev load.Device, q quantiser) {
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
			for e, old := range bank {
				w13 := append(widened(t, old.Gate), widened(t, old.Up)...)
				q13, q2 := q(t, layer, e, w13, widened(t, old.Down))
				both := q13.Dequantize()
				bank[e] = device.Expert{Gate: wrap(both[:f*h], f, h), Up: wrap(both[f*h:], f, h), Down: wrap(q2.Dequantize(), h, f)}
			}
		}
	}
}

// widened is a BF16 matrix as float32.
func widened(t *testing.T, m device.Mat) []float32 {
	t.Helper()
	out := make([]float32, m.Rows*m.Cols)
	for i, v := range m.U16s() {
		out[i] = tensor.BF16ToF32(v)
	}
	return out
}

// TestTinyQuantised measures the default model with INT4 experts, groups of 64,
// against itself unquantised: KL divergence of each method, as a share of plain
// rounding's. Measured: the first tokens of heldout.txt; calibrated with: tokens
// of the same file from its second half on, never measured.
func TestTinyQuantised(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of forward passes: not in the short suite")
	}
	const window, measured, learned = 512, 8192, 16384
	text, err := os.ReadFile(filepath.Join(tiny, "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(os.DirFS(tiny))
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: true})
	half := len(ids) / 2
	test, calibrate := ids[:measured], ids[half:half+learned]
	dev := processor(t, 2)
	options := load.Options{Limits: stages.Limits{Tokens: window, Seqs: 1, LogitRows: window, Blocks: 32, BlockTokens: 16}, KVType: tensor.F32}
	reference := open(t, dev, tiny, "config.json", options)
	cfg := reference.model.Parts.Config
	seen, err := calibration.New(cfg, reference.set, 0, cfg.Layers)
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
	h, f, spec := cfg.Hidden, cfg.MoE.FF, quant.Spec{Bits: 4, Group: 64}
	plain := func(o13, o2 quant.Options) quantiser {
		return func(t *testing.T, _, _ int, w13, w2 []float32) (*quant.Matrix, *quant.Matrix) {
			return quantised(t, w13, 2*f, h, spec, o13), quantised(t, w2, h, f, spec, o2)
		}
	}
	stats := func(t *testing.T, layer, e int) calibration.Expert {
		x, ok := seen.Expert(layer, e)
		if !ok {
			t.Fatalf("nothing seen in layer %d", layer)
		}
		return x
	}
	var base float64
	for _, x := range []struct {
		name  string
		limit float64 // of the KL divergence, as a share of plain rounding's
		with  quantiser
	}{
		{"absmax", 1, plain(quant.Options{Method: quant.Absmax}, quant.Options{Method: quant.Absmax})},
		{"search", 0.70, plain(quant.Options{}, quant.Options{})},
		{"weighted search", 0.70, func(t *testing.T, layer, e int, w13, w2 []float32) (*quant.Matrix, *quant.Matrix) {
			s := stats(t, layer, e)
			return plain(quant.Options{Weight: s.In.Diagonal()}, quant.Options{Weight: s.Mid.Diagonal()})(t, layer, e, w13, w2)
		}},
		{"feedback", 0.58, func(t *testing.T, layer, e int, w13, w2 []float32) (*quant.Matrix, *quant.Matrix) {
			s := stats(t, layer, e)
			return fed(t, w13, 2*f, h, spec, s.In), fed(t, w2, h, f, spec, s.Mid)
		}},
	} {
		m := open(t, dev, tiny, "config.json", options)
		requantise(t, m, dev, x.with)
		r, err := ppl.Against(reference.model, m.model, test, window, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.name == "absmax" {
			base = r.MeanKL
		}
		t.Logf("%-16s KL %.5f (%.3f of plain), max %.2f, top-1 %.4f, perplexity %.3f (unquantised %.3f)", x.name, r.MeanKL, r.MeanKL/base, r.MaxKL, r.Top1, r.Model.Perplexity, r.Reference.Perplexity)
		if !(r.MeanKL > 0) || r.MeanKL > x.limit*base {
			t.Errorf("%s: KL %.5f is %.3f of plain rounding's, want at most %.2f", x.name, r.MeanKL, r.MeanKL/base, x.limit)
		}
	}
}

func quantised(t *testing.T, w []float32, rows, cols int, spec quant.Spec, o quant.Options) *quant.Matrix {
	t.Helper()
	m, err := quant.Quantize(w, rows, cols, spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func fed(t *testing.T, w []float32, rows, cols int, spec quant.Spec, h *quant.Hessian) *quant.Matrix {
	t.Helper()
	m, err := quant.Feedback(w, rows, cols, spec, h, quant.FeedbackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
