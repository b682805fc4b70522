package ref

import (
	"math"
	"testing"

	"krater/kernels/device"
)

func TestGate(t *testing.T) {
	out := []float32{2, -4}
	Gate(out, []float32{0, float32(math.Log(3))})
	expect(t, "gated", out, 1, -3)
}

// Taps 1, 10 and 100 of the tokens before, the last one the row's own: what a sum is made of shows in
// its digits. The input's columns are query, key, value and gate of one head.
func TestConv(t *testing.T) {
	p := device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 3}
	x := []float32{1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0}
	w := []float32{1, 1, 1, 10, 10, 10, 100, 100, 100}
	tail := make([]float32, 2*3*3)
	silu := func(v ...float64) (out []float64) {
		for _, x := range v {
			out = append(out, x/(1+math.Exp(-x)))
		}
		return out
	}
	out := make([]float32, 9)
	Conv(out, x, w, tail, []device.Span{{Len: 2, Slot: 1}, {Row: 2, Len: 1, Pos: 2, Slot: 1}}, p)
	expect(t, "sums", out, silu(100, 200, 300, 410, 520, 630, 741, 852, 963)...)
	expect(t, "kept", tail, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
}

// Query and key are (3, 4)/5 and (1, 0), over lengths that the small number hardly changes.
func TestDelta(t *testing.T) {
	p := device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 2, ValueDim: 1, Taps: 1}
	x := []float32{3e3, 4e3, 1e3, 0, 8}
	states := []float32{0, 0, 10, 20}
	out := make([]float32, 1)
	// Strength 1/2; a decay of -1 times log(1+e^0) halves the state: 5, 10. The key knows 5 of it and
	// writes half of what is missing to 8.
	Delta(out, x, []float32{0, 1}, []float32{-1}, []float32{-1}, states, []device.Span{{Len: 1, Slot: 1}}, p)
	expect(t, "state", states, 0, 0, 6.5, 10)
	expect(t, "out", out, (0.6*6.5+0.8*10)/math.Sqrt2)
}

// Each row of the state has a decay of its own: exp(-2 / 2) and exp(-2 * 3/4).
func TestDeltaOfRows(t *testing.T) {
	p := device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 2, ValueDim: 1, Taps: 1, Floor: -2}
	x := []float32{3e3, 4e3, 1e3, 0, 8}
	states, out := []float32{10, 20}, make([]float32, 1)
	third := float32(math.Log(3)) // whose sigmoid is 3/4
	Delta(out, x, []float32{0, 1, 0}, []float32{-2}, []float32{-1, third / 2}, states, []device.Span{{Len: 1}}, p)
	a, b := 10*math.Exp(-1), 20*math.Exp(-1.5)
	a += (8 - a) / 2
	expect(t, "state", states, a, b)
	expect(t, "out", out, (0.6*a+0.8*b)/math.Sqrt2)
}

func TestGatedNorm(t *testing.T) {
	p := device.DeltaNet{KeyHeads: 1, ValueHeads: 2, KeyDim: 1, ValueDim: 2, Taps: 1, ByKeyHead: true}
	out := []float32{3, 4, 6, 8}
	gates := []float32{9, 9, 9, 9, 9, 9, 1, 2, 3, 4}
	GatedNorm(out, gates, []float32{1, 2}, 0, p)
	by := func(x float64) float64 { return x / (1 + math.Exp(-x)) / math.Sqrt(12.5) }
	expect(t, "normed and gated", out, 3*by(1), 8*by(2), 3*by(3), 8*by(4))
}
