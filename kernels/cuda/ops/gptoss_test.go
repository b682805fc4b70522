package ops

import (
	"slices"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestLaunchesOfAnOSSLayer: a layer of gpt-oss-20b for a generated row has the launches of one
// without biases, sinks and a window, and in a short window one less. Biases and windows have kernels of their own.
func TestLaunchesOfAnOSSLayer(t *testing.T) {
	for window, attention := range map[int][]string{0: {"kr_gqa_decode8_e4m3_64", "kr_gqa_join_64"}, 128: {"kr_gqa_decode8_window_e4m3_64"}} {
		want := slices.Concat([]string{"kr_gemv_norm_biased_int8_g128", "kr_head_store"}, attention,
			[]string{"kr_gemv_biased_int8_g128", "kr_norm_route_b", "kr_gemv_gate_up_biased_int4_g128", "kr_gemv_down_all_biased_int4_g128"})
		var got []string
		for _, o := range ossLayer(window).Ops {
			got = append(got, o.Kernel.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("window %d: launches\n%q, want\n%q", window, got, want)
		}
	}
}

// ossLayer returns the launches of a layer of gpt-oss-20b for one generated row.
func ossLayer(window int) *launch.List {
	const hidden, experts, topK = 2880, 32, 4
	p := device.GQA{Heads: 64, KVHeads: 8, HeadDim: 64, Scale: 0.125, BlockTokens: 64, Window: window}
	a, l := &at{}, &launch.List{}
	b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: l, Turn: 1 << 59, Scratch: func(int) launch.Ptr { return 1 << 60 }}
	biased := func(rows, cols int) launch.Weight {
		w := a.tiles(rows, cols, 8, false)
		w.Bias = a.mat(tensor.F32, 1, rows).At
		return w
	}
	h, x, norm, out := a.mat(tensor.F32, 1, hidden), a.mat(tensor.BF16, 1, hidden), a.mat(tensor.BF16, 1, hidden), a.mat(tensor.BF16, 1, p.Heads*p.HeadDim)
	both := a.mat(tensor.BF16, 1, out.Cols+p.Width())
	q, kv := both.ColRange(0, out.Cols), both.ColRange(out.Cols, both.Cols)
	cache := launch.KV{Mat: a.mat(tensor.F8E4M3, 1<<16, p.Width())}
	rope := device.Rope{Heads: p.Heads, HeadDim: p.HeadDim, Dim: p.HeadDim}
	keys := rope
	keys.Heads = p.KVHeads
	b.NormMatMul(both, x, h, norm, 1e-5, biased(both.Cols, hidden))
	b.HeadStore(cache, q, kv, launch.Mat{}, launch.Mat{}, 0, a.mat(tensor.I32, 1, 1), a.mat(tensor.I32, 1, 1), a.mat(tensor.F32, 4096, 64), rope, keys)
	b.GQA(out, q, cache, a.mat(tensor.F32, 1, p.Heads), []device.Span{{Len: 1, Pos: 2047}}, a.mat(tensor.I32, 1, 1<<16), true, p)
	b.AddMatMul(h, x, out, biased(hidden, out.Cols))
	ids, weights := a.mat(tensor.I32, 1, topK), a.mat(tensor.F32, 1, topK)
	gate := launch.Weight{F: a.mat(tensor.BF16, experts, hidden), Bias: a.mat(tensor.F32, 1, experts).At}
	b.NormRoute(ids, weights, a.mat(tensor.F32, 1, experts), x, h, norm, 1e-5, gate, launch.Mat{}, device.Router{Experts: experts, TopK: topK, Normalize: true, Scale: 1})
	step := int64(1) << 30
	bank := launch.Bank{Experts: experts, W13: a.tiles(2*hidden, hidden, 4, true), W2: a.tiles(hidden, hidden, 4, false), Step: step, ScaleStep: step, Step2: step, ScaleStep2: step,
		Extra: launch.Extra{B13: 1 << 58, B2: 1 << 57, BiasStep: step, Alpha: 1.702, Limit: 7, Shift: 1}}
	b.AddMix(h, x, a.mat(tensor.BF16, topK, hidden), launch.Mat{}, x, bank, Network{}, ids, weights)
	return l
}
