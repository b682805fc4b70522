package forecast

import (
	"testing"

	"krater/scheduler/planner/rates"
)

// Sizes of DeepSeek-V2-Lite that the measured tables are of.
const (
	liteExpert = 3 * 2048 * 1408 // weights
	liteRouted = 26 * 6 * liteExpert
	liteShared = 26 * 2 * liteExpert
	liteFixed  = 2.24e9 - liteRouted - liteShared // without the head
)

// lite is the model with its experts in INT4, the rest in INT8, on an H100 that nothing
// but its own kernels was measured on.
func lite() Case {
	s := Shape{
		Layers: 27, MoE: 26, Experts: 64, TopK: 6,
		ExpertCard: 0.515625 * liteExpert, ExpertHost: 0.515625 * liteExpert, ExpertFLOP: 2 * liteExpert,
		FixedBytes: 1.015625 * liteFixed, FixedFLOP: 2 * liteFixed,
		SharedBytes: 1.015625 * liteShared, SharedFLOP: 2 * liteShared,
		HeadBytes: 1.015625 * 102400 * 2048, HeadFLOP: 2 * 102400 * 2048,
		KVToken: 27 * 576, // fp8
		// 16 heads: 192 + 128 of a prompt, 576 + 512 in the latent space.
		PairFLOP: 2 * 27 * 16 * (192 + 128), DecodePair: 2 * 27 * 16 * (576 + 512), ExpandFLOP: 2 * 27 * 512 * 16 * 256,
		RowBytes: 27 * 2 * (16*2048 + 6*3*(2048+1408)), HandIn: 2 * 2048, HandOut: 2 * 2048,
	}
	h100, _ := rates.Named("h100")
	return Case{
		Shape: s, Rates: rates.Rates{Card: h100, CPU: rates.AssumedCPU("cpu", 16, 1, rates.Matrix)}, Skew: Uniform(64),
		Budget: Budget{VRAM: 80 << 30, Fixed: 2 << 30, KV: 4 << 30}, Work: Usual(),
	}
}

// TestMeasuredH100: within 10 % of what the engine does with everything on the GPU
// (bench/results/gpu.md, a prompt in one chunk, 2,048 tokens before a generated one).
func TestMeasuredH100(t *testing.T) {
	c := lite()
	c.Work.Chunk = 8192
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if f.Prefill.Name() != "persistent" || f.Decode.Name() != "persistent" {
		t.Fatalf("%s and %s", f.Prefill.Name(), f.Decode.Name())
	}
	for i, want := range []float64{51_100, 80_900, 79_600} {
		near(t, "prefill", f.Prefill.Prefill.Points[i].PerSecond, want, 0.10)
		t.Logf("prefill of %d: %.0f predicted, %.0f measured", f.Prefill.Prefill.Points[i].N, f.Prefill.Prefill.Points[i].PerSecond, want)
	}
	for i, want := range []float64{789, 2618, 6471} {
		near(t, "decode", f.Decode.Decode.Points[i].PerSecond, want, 0.10)
		t.Logf("%d streams: %.0f predicted, %.0f measured", f.Decode.Decode.Points[i].N, f.Decode.Decode.Points[i].PerSecond, want)
	}
}

// TestMeasuredH200: on both GPUs the same program decoded 585 and 623, 1,821 and 1,853,
// 3,676 and 4,170 tokens a second.
func TestMeasuredH200(t *testing.T) {
	c := lite()
	h100, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Rates.Card, _ = rates.Named("h200")
	h200, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{623. / 585, 1853. / 1821, 4170. / 3676} {
		near(t, "as fast as an H100", h200.Decode.Decode.Points[i].PerSecond/h100.Decode.Decode.Points[i].PerSecond, want, 0.10)
	}
}

// small describes a machine that was measured with another program: 64 cores with AVX2 and an RTX
// 2000 Ada, V2-Lite in INT4 with attention in BF16. Four figures come from the first two chunks of a
// long prompt, one short prompt, and the slowest strategy. The forecast must predict all other
// figures of the tables.
func small() Case {
	c := lite()
	c.Shape.ExpertCard = 7654 << 20 / (26 * 64)
	c.Shape.RowBytes, c.Shape.ExpandFLOP = 0, 0 // within the figures
	c.Shape.KVToken = 2 * 27 * 576
	c.Rates.Card = rates.Card{
		Name: "RTX 2000 Ada", MemoryGiB: 16, ReadGBps: 206, WeightShare: 1, TFLOPS: 48,
		// 2,048 tokens behind 2,048 more take 0.177 s longer: 1.16 TFLOP of attention.
		Attention: rates.Curve{Peak: 6.5},
		// 0.505 s for the first 2,048, 0.155 s for 512: the rate of all products doubles
		// with some 350 rows, 33 of an expert.
		Dense: rates.Curve{Peak: 26, Half: 350}, Experts: rates.Curve{Peak: 26, Half: 33},
		// 10.5 s for 7,654 MiB.
		CopyGBps: 0.765, BusyGBps: 0.765, CopyUS: 1e-3, Launches: 1e-9,
	}
	return c
}

// TestMeasuredTables: prompts with everything on the GPU, and streamed anew for every
// 2,048 tokens.
func TestMeasuredTables(t *testing.T) {
	c := small()
	c.Work.Lengths = []int{512, 1024, 2031, 4047, 9903}
	all := c.sideOf(t, "persistent", layout{kept: 64}, false)
	chunks := c.sideOf(t, "chunked", layout{slots: 64}, false)
	for i, want := range []struct{ persistent, chunked float64 }{{0.155, 11.17}, {0.250, 10.71}, {0.498, 11.01}, {1.167, 22.12}, {4.110, 57.26}} {
		near(t, "persistent", all.Points[i].Seconds, want.persistent, 0.10)
		near(t, "chunked", chunks.Points[i].Seconds, want.chunked, 0.06)
		t.Logf("%d tokens: %.3f s predicted, %.3f s measured; chunked %.2f s, %.2f s", all.Points[i].N, all.Points[i].Seconds, want.persistent, chunks.Points[i].Seconds, want.chunked)
	}
	// Two groups, nothing beside the copies: 48 tok/s of 512, 95 of a thousand, 340 of
	// four thousand. Groups of one layer in one buffer are as much.
	c.Work.Lengths = []int{512, 1024, 4047}
	grouped := c.sideOf(t, "layer_grouped", layout{groups: 26, buffers: 1}, false)
	for i, want := range []float64{48, 95, 340} {
		near(t, "layer_grouped:2", grouped.Points[i].PerSecond, want, 0.06)
	}
}

// TestMeasuredChunks: what each 2,048 of 9,903 tokens took.
func TestMeasuredChunks(t *testing.T) {
	c := small()
	var before float64
	for i, want := range []float64{0.505, 0.682, 0.862, 1.044, 1.016} {
		c.Work.Lengths = []int{min(9903, 2048*(i+1))}
		all := c.sideOf(t, "persistent", layout{kept: 64}, false).Points[0].Seconds
		near(t, "a chunk", all-before, want, 0.06)
		before = all
	}
}
