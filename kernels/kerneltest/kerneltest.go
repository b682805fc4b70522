// Package kerneltest has what tests of operators share: seeded inputs, guarded memory, tolerances
// from the data, and a comparison that names the worst element.
package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"krater/kernels/tensor"
)

// Rand returns a generator that produces the same numbers for the same seed.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6b7261746572)) }

// Normal returns n values of standard deviation sd.
func Normal(r *rand.Rand, n int, sd float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * sd)
	}
	return v
}

// BF16 rounds values and returns both the stored and the widened form.
func BF16(values []float32) (stored []uint16, widened []float32) {
	stored, widened = make([]uint16, len(values)), make([]float32, len(values))
	for i, v := range values {
		stored[i] = tensor.F32ToBF16(v)
		widened[i] = tensor.BF16ToF32(stored[i])
	}
	return stored, widened
}

// Bytes views a slice of numbers as memory.
func Bytes[E any](s []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(e)))
}

// Tolerance is the absolute error allowed for element i of a result.
type Tolerance func(i int) float64

// Eps32 is the relative distance of float32 values: half of it is one rounding.
const Eps32 = 1.0 / (1 << 23)

// Relative allows ulps rounding steps of |want|, plus abs.
func Relative(want []float32, ulps, abs float64) Tolerance {
	return func(i int) float64 { return math.Abs(float64(want[i]))*ulps*Eps32 + abs }
}

// DotTolerance bounds the error of float32 dot products of length k. A chain of roundings grows
// with sum |x||w| <= |x| |w|; its length is at most k/8+16 in a kernel of eight or more lanes (k in
// the scalar one, whose error in practice grows as sqrt(k)). x is [m, k], w is [n, k], the result
// [m, n].
func DotTolerance(x, w []float32, k int) Tolerance {
	xs, ws := Norms(x, k), Norms(w, k)
	growth := (16 + 2*math.Sqrt(float64(k))) * Eps32 / 2
	return func(i int) float64 {
		return xs[i/len(ws)]*ws[i%len(ws)]*growth + math.SmallestNonzeroFloat32
	}
}

// Norms returns the Euclidean norms of the rows of a [n, k] matrix.
func Norms(x []float32, k int) []float64 {
	norms := make([]float64, len(x)/k)
	for r := range norms {
		var sum float64
		for _, v := range x[r*k : (r+1)*k] {
			sum += float64(v) * float64(v)
		}
		norms[r] = math.Sqrt(sum)
	}
	return norms
}

// MaxAbs returns the largest magnitude.
func MaxAbs(x []float32) float64 {
	var top float64
	for _, v := range x {
		top = math.Max(top, math.Abs(float64(v)))
	}
	return top
}

// Compare is nil when every element of got is within its tolerance of want; otherwise it names the
// element furthest beyond it. NaN equals NaN only.
func Compare(got, want []float32, cols int, tol Tolerance) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	worst, at, bad := 0.0, -1, 0
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		excess := math.Abs(g-w) / tol(i)
		if math.IsNaN(excess) {
			excess = math.Inf(1)
		}
		if excess > 1 {
			bad++
		}
		if excess > worst {
			worst, at = excess, i
		}
	}
	if worst <= 1 {
		return nil
	}
	return fmt.Errorf("%d of %d elements differ, the worst is [%d, %d]: %g, want %g, off by %.3g, allowed %.3g",
		bad, len(got), at/cols, at%cols, got[at], want[at], math.Abs(float64(got[at])-float64(want[at])), tol(at))
}

// SameBits is nil when the two slices are equal bit for bit.
func SameBits(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return fmt.Errorf("element %d is %08x (%g), want %08x (%g)", i,
				math.Float32bits(got[i]), got[i], math.Float32bits(want[i]), want[i])
		}
	}
	return nil
}
