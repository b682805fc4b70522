package ref

import (
	"math"
	"slices"
	"testing"

	"krater/kernels/device"
)

// Entries of two tokens of one channel; gates are logarithms, so that weights are simple. The norm makes 1 of anything, so
// its weight is 0 but for eps: 1e6 over a square below 1.
func TestCompress(t *testing.T) {
	log := func(v float64) float32 { return float32(math.Log(v)) }
	p := device.Compress{Dim: 1, Ratio: 2, Eps: 1e12, Rope: device.Rope{Heads: 1, HeadDim: 1}, BlockTokens: 2}
	near := []float32{ // blocks 1 and 0 of the sequence, a window each
		5, log(1), 9, log(1),
		1, log(1), 2, log(3),
	}
	span := []device.Span{{Len: 2, Pos: 1, Blocks: []int32{1, 0}}}
	entries, slots := Compress(span, near, span, []float32{1e6}, []float32{0, log(2)}, nil, p)
	// Only the first window is complete: weights 1 and 3*2.
	expect(t, "entry", entries, 13./7)
	if !slices.Equal(slots, []int32{1}) {
		t.Errorf("slots %v", slots)
	}

	p.Overlap = true
	near = []float32{ // C for the next window and its own, Z likewise
		0, 5, 0, log(2), 0, 9, 0, log(1),
		10, 1, log(4), log(1), 20, 2, log(1), log(1),
	}
	span[0].Pos, span[0].Len = 0, 4
	entries, slots = Compress(span, near, span, []float32{1e6}, make([]float32, 4), nil, p)
	expect(t, "overlap", entries, 1.5, (4*10+20+2*5+9)/8.)
	if !slices.Equal(slots, []int32{1, 0}) {
		t.Errorf("slots %v", slots)
	}
}

// Keys are zeros and ones, the query is a logarithm: the weight of a key 1 is 2, of a key 0 and of the sink 1.
func TestCompressed(t *testing.T) {
	p := device.Compressed{Heads: 1, Dim: 2, Window: 2, Ratio: 2, Scale: 1, BlockTokens: 8}
	near := []float32{1, 9, 1, 1, 0, 2, 0, 3, 1, 4}
	entries := []float32{1, 10, 0, 20}
	q := []float32{float32(math.Ln2), 0, float32(math.Ln2), 0}
	span := []device.Span{{Len: 2, Pos: 3, Blocks: []int32{0}}}
	out := make([]float32, 4)
	Compressed(out, q, entries, span, near, span, nil, 0, []float32{0}, p)
	// At position 3 tokens 2 and 3 and both entries, at position 4 tokens 3 and 4 and both.
	expect(t, "all", out, 2./6, (2+3+2*10+20)/6., 4./7, (3+2*4+2*10+20)/7.)
	Compressed(out, q, entries, span, near, span, []int32{1, -1, 0, -1}, 2, []float32{0}, p)
	expect(t, "chosen", out, 0, (2+3+20)/4., 4./6, (3+2*4+2*10)/6.)
}

func TestRouteByToken(t *testing.T) {
	p := device.Router{Experts: 3, TopK: 2, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 3}
	ids, weights := make([]int32, 2), make([]float32, 2)
	inverse := func(s float64) float32 { return float32(math.Log(math.Exp(s*s) - 1)) } // of sqrt(softplus)
	RouteByToken(ids, weights, []float32{inverse(1), 7, inverse(2)}, []int32{1}, []float32{1, 1, 0, 2}, p)
	if !slices.Equal(ids, []int32{2, 0}) {
		t.Errorf("ids %v", ids)
	}
	expect(t, "weights", weights, 2, 1)
}
