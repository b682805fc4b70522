package ref

import (
	"math"
	"testing"

	"krater/kernels/device"
)

// Two streams of one value, 3 and 4: their root mean square is 5/sqrt(2).
func TestMixWeights(t *testing.T) {
	x := []float32{3, 4}
	unit := 5 / math.Sqrt2
	z := func(v float64) float32 { return float32(v * unit) }
	p := device.StreamMix{Streams: 2, Iterations: 1, Eps: 0.25}
	out := []float32{z(1), 0, 0, z(2), z(math.Log(3)), 0, 0, 0}
	base := []float32{0, 1, 0, -2, 0, 0, 0, 0}
	MixWeights(out, x, base, []float32{2, 1, 1}, p)
	// The softmax of the matrix is 3/4 1/4, 1/2 1/2; plus 1/4 its columns sum to 7/4 and 5/4, plus 1/4 they are 2 and 3/2.
	expect(t, "weights", out, sigmoid(2)+0.25, sigmoid(1)+0.25, 1, 1, 0.5, 1./3, 3./8, 0.5)

	out, p.Iterations, p.Eps = []float32{0, 0, 0, 0, z(math.Log(3)), 0, 0, 0}, 2, 0
	MixWeights(out, x, make([]float32, 8), []float32{1, 1, 1}, p)
	// Columns: 3/5 1/3, 2/5 2/3. Rows: 9/14 5/14, 3/8 5/8. Columns: 57/56 and 55/56.
	expect(t, "matrix", out[4:], 36./57, 20./55, 21./57, 35./55)

	head := []float32{z(1), z(1)}
	MixWeights(head, x, []float32{0, 1}, []float32{3}, p)
	expect(t, "read", head, sigmoid(3), sigmoid(4))
}

func TestMixedStreams(t *testing.T) {
	out, x := make([]float32, 2), []float32{1, 2, 3, 4}
	CollapseWhole(out, x, []float32{10, 100}, 2, 2)
	expect(t, "collapse", out, 310, 420)
	CollapseWhole(out, x, nil, 2, 2)
	expect(t, "mean", out, 2, 3)
	wide := make([]float32, 4)
	SpreadMixed(wide, []float32{1000, 2000}, []float32{1, 2, 1, 10, 100, 0}, x, 2, 2)
	expect(t, "spread", wide, 1301, 2402, 2010, 4020)
}
