package ref

import (
	"math"
	"slices"
	"testing"

	"krater/kernels/device"
)

// expect compares with numbers worked out by hand.
func expect(t *testing.T, name string, got []float32, want ...float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", name, len(got), len(want))
	}
	for i := range got {
		if math.Abs(float64(got[i])-want[i]) > 1e-6*(1+math.Abs(want[i])) {
			t.Errorf("%s: %v, want %v", name, got, want)
			return
		}
	}
}

func TestMatMul(t *testing.T) {
	out := make([]float32, 4)
	MatMul(out, []float32{1, 2, 3, 4}, []float32{5, 6, 7, 8}, 2, 2, 2)
	expect(t, "x * w^T", out, 17, 23, 39, 53)
}

func TestRMSNorm(t *testing.T) {
	out := make([]float32, 4)
	RMSNorm(out, []float32{3, 4, 0, 0}, []float32{1, 2}, 0)
	expect(t, "norm", out[:2], 3/math.Sqrt(12.5), 8/math.Sqrt(12.5))
	RMSNorm(out[:2], []float32{0, 0}, []float32{1, 2}, 1e-6)
	expect(t, "zeros", out[:2], 0, 0)
	x := []float32{1, 1}
	AddRMSNorm(out[:2], x, []float32{2, 3}, []float32{1, 2}, 0)
	expect(t, "sum", x, 3, 4)
	expect(t, "norm of the sum", out[:2], 3/math.Sqrt(12.5), 8/math.Sqrt(12.5))
}

// A quarter turn takes (u, v) to (-v, u); which elements are pairs differs.
func TestRope(t *testing.T) {
	table := []float32{1, 0, 1, 0, 0, 1, 1, 0} // position 1: a quarter turn of the first pair
	for _, c := range []struct {
		interleaved bool
		want        []float64
	}{{true, []float64{9, -2, 1, 3, 4}}, {false, []float64{9, -3, 2, 1, 4}}} {
		x := []float32{9, 1, 2, 3, 4}
		Rope(x, 5, []int32{1}, table, device.Rope{Heads: 1, HeadDim: 5, Offset: 1, Dim: 4, Interleaved: c.interleaved})
		expect(t, "turned", x, c.want...)
	}
}

func TestFFNAndExperts(t *testing.T) {
	// One inner value: out = silu(gate x) * (up x) * down.
	e := Expert{Gate: []float32{1, 0}, Up: []float32{0, 1}, Down: []float32{1, -2}}
	silu := 2 / (1 + math.Exp(-2))
	out := make([]float32, 2)
	FFN(out, []float32{2, 3}, e, 2)
	expect(t, "ffn", out, 3*silu, -6*silu)
	odd := e // gate 2, up 3 before biases: clamped to 1 and -1
	odd.Act, odd.B13, odd.B2 = device.Activation{Alpha: 2, Limit: 1, Shift: 3}, []float32{0.5, -7}, []float32{10, 20}
	FFN(out, []float32{2, 3}, odd, 2)
	swiglu := 2 / (1 + math.Exp(-2.0))
	expect(t, "biases and a limit", out, 10+swiglu, 20-2*swiglu)
	y := make([]float32, 8)
	Experts(y, []float32{0, 0, 2, 3}, []Expert{{}, e}, []device.ExpertRows{{Expert: 1, Assign: []int32{3}}}, 2, 2)
	expect(t, "experts", y, 0, 0, 0, 0, 0, 0, 3*silu, -6*silu)
	WeightedSum(out, y[4:], []float32{5, 0.5}, []float32{1, 1}, 2, 2)
	expect(t, "weighted", out, 1+1.5*silu, 1-3*silu)
}

// With one key softmax is 1 and the result is that key's value; with two equal keys it is the mean
// of the values. Rank 1, one head: value = 10 * latent.
func TestMLA(t *testing.T) {
	p := device.MLA{Heads: 1, Nope: 1, Rope: 1, V: 1, Rank: 1, Scale: 1, BlockTokens: 2}
	cache := []float32{0, 0, 0, 0, 2, 7, 3, math.MaxFloat32} // slots 2 and 3 are block 1
	kvB := []float32{0, 10}                                  // keys 0, values 10 * latent
	out := make([]float32, 2)
	MLA(out, []float32{1, 0, 1, 0}, cache, kvB, []device.Span{{Row: 0, Len: 2, Pos: 0, Blocks: []int32{1}}}, p)
	expect(t, "causal mean", out, 20, 25)
	// The rotated part decides: scores 0.7 and 0.3.
	cache[5], cache[7] = 0.7, 0.3
	MLA(out, []float32{1, 0, 1, 1}, cache, kvB, []device.Span{{Row: 0, Len: 2, Pos: 0, Blocks: []int32{1}}}, p)
	a, b := math.Exp(0.7), math.Exp(0.3)
	expect(t, "weighted", out, 20, (20*a+30*b)/(a+b))
}

// Two query heads share one key head; the keys are 0, so the result is the mean of the visible
// values. Then a key that only the second query head meets.
func TestGQA(t *testing.T) {
	p := device.GQA{Heads: 2, KVHeads: 1, HeadDim: 2, Scale: 1, BlockTokens: 2}
	const far = math.MaxFloat32
	cache := []float32{far, far, far, far, far, far, far, far, // block 0
		0, 0, 2, 20, 0, 0, 4, 40} // block 1: [key, value] of two tokens
	out := make([]float32, 8)
	q := []float32{1, 0, 0, 1, 1, 0, 0, 1} // two rows of two heads
	spans := []device.Span{{Row: 0, Len: 2, Pos: 0, Blocks: []int32{1}}}
	GQA(out, q, cache, nil, spans, p)
	expect(t, "causal mean", out, 2, 20, 2, 20, 3, 30, 3, 30)
	cache[9] = float32(math.Log(3)) // the first token's key
	GQA(out, q, cache, nil, spans, p)
	expect(t, "weighted", out, 2, 20, 2, 20, 3, 30, 2.5, 25)
	p.Window = 1 // each row sees its own key only
	GQA(out, q, cache, nil, spans, p)
	expect(t, "window", out, 2, 20, 2, 20, 4, 40, 4, 40)
	// Sinks of scores log 1 and log 3, beside keys with scores 0.
	clear(q)
	GQA(out, q, cache, []float32{0, float32(math.Log(3))}, spans, p)
	expect(t, "sinks", out, 1, 10, 0.5, 5, 2, 20, 1, 10)
	// Two key heads: head 1 reads the second key and the second value.
	p = device.GQA{Heads: 2, KVHeads: 2, HeadDim: 1, Scale: 1, BlockTokens: 1}
	out = out[:2]
	GQA(out, []float32{1, 1}, []float32{5, 6, 7, 8}, nil, []device.Span{{Row: 0, Len: 1, Pos: 0, Blocks: []int32{0}}}, p)
	expect(t, "heads of their own", out, 7, 8)
}

func TestGateRows(t *testing.T) {
	out := []float32{8, 4, -2, 8, 4, -2}
	GateRows(out, []float32{1, 2, 3, 1}, []float32{2, -1}, 3) // 0, and 5
	by := 1 / (1 + math.Exp(-5.0))
	expect(t, "gated", out, 4, 2, -1, 8*by, 4*by, -2*by)
}

func TestAddBias(t *testing.T) {
	x := []float32{1, 2, 3, 4}
	AddBias(x, []float32{10, 20})
	expect(t, "biased", x, 11, 22, 13, 24)
}

// All biased scores are negative, so a masked group must count as minus infinity; the two
// rules rate the groups differently.
func TestRouterGroups(t *testing.T) {
	var logits []float32
	for _, s := range []float64{0.90, 0.10, 0.60, 0.55, 0.30, 0.20, 0.58, 0.52} {
		logits = append(logits, float32(math.Log(s/(1-s))))
	}
	bias := []float32{-2, -2, -2, -2, -2, -2, -2, -2}
	p := device.Router{Experts: 8, TopK: 3, Scoring: device.ScoreSigmoid, Groups: 4, TopGroups: 2, Scale: 2}
	ids, weights := make([]int32, 3), make([]float32, 3)
	RouteTopK(ids, weights, logits, bias, nil, p)
	if !slices.Equal(ids, []int32{0, 2, 3}) {
		t.Errorf("best expert: %v", ids)
	}
	expect(t, "raw scores, scaled", weights, 1.8, 1.2, 1.1)
	p.GroupScore = device.GroupTop2Sum
	RouteTopK(ids, weights, logits, bias, nil, p)
	if !slices.Equal(ids, []int32{2, 6, 3}) {
		t.Errorf("two best: %v", ids)
	}
}

func TestRouterSoftmax(t *testing.T) {
	ids, weights := make([]int32, 2), make([]float32, 2)
	logits := []float32{0, float32(math.Log(3)), 0, float32(math.Log(5))}
	RouteTopK(ids, weights, logits, nil, nil, device.Router{Experts: 4, TopK: 2, Scale: 1})
	if !slices.Equal(ids, []int32{3, 1}) {
		t.Errorf("experts %v", ids)
	}
	expect(t, "softmax", weights, 0.5, 0.3)
	RouteTopK(ids, weights, logits, nil, nil, device.Router{Experts: 4, TopK: 2, Scale: 4, Normalize: true})
	expect(t, "normalised", weights, 2.5, 1.5)
}

func TestRowsMove(t *testing.T) {
	out := make([]float32, 4)
	GatherRows(out, []float32{1, 2, 3, 4, 5, 6}, []int32{2, 0}, 2)
	expect(t, "gathered", out, 5, 6, 1, 2)
	cache := make([]float32, 6)
	StoreRows(cache, []float32{7, 8}, []int32{1}, 2)
	expect(t, "stored", cache, 0, 0, 7, 8, 0, 0)
}

// GELU of 1 and -2 by its tanh approximation is 0.841192 and -0.0454023.
func TestActivate(t *testing.T) {
	x := []float32{1, -2, 0}
	Activate(x, []float32{1, 10, 3}, device.GELUTanh)
	expect(t, "gelu times up", x, 0.8411919906, -0.4540230591, 0)
}

func TestScaleAndSoftcap(t *testing.T) {
	x := []float32{1, -2}
	Scale(x, 0.25)
	expect(t, "scaled", x, 0.25, -0.5)
	x = []float32{0, float32(math.Log(3)), -100} // tanh(log(3)/2) is 1/2
	Softcap(x, 2)
	expect(t, "capped", x, 0, 1, -2)
}

// Factors change weights and their order, not the choice.
func TestRouterFactors(t *testing.T) {
	ids, weights := make([]int32, 2), make([]float32, 2)
	logits := []float32{0, float32(math.Log(3)), 0, float32(math.Log(5))}
	RouteTopK(ids, weights, logits, nil, []float32{100, 4, 100, 2}, device.Router{Experts: 4, TopK: 2, Scale: 1, Normalize: true})
	if !slices.Equal(ids, []int32{1, 3}) {
		t.Errorf("experts %v", ids)
	}
	expect(t, "normalised, then multiplied", weights, 1.5, 1.25)
}
