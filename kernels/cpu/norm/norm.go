// Package norm has the two passes of RMSNorm (arXiv 1910.07467): the sum of squares of a row, and
// the scaled product with the weights. How a sum is split into lanes depends only on the row's
// length.
package norm

import "krater/kernels/cpu/level"

// Funcs are the kernels of one level.
type Funcs struct {
	// SumSquares is the sum of x[i]^2.
	SumSquares func(x *float32, n int) float32
	// AddSumSquares is x += delta, then SumSquares of x.
	AddSumSquares func(x, delta *float32, n int) float32
	// MulF32 is out = x * scale * w, weights F32; out may be x.
	MulF32 func(out, x, w *float32, n int, scale float32)
	// MulBF16 is the same with weights BF16.
	MulBF16 func(out, x *float32, w *uint16, n int, scale float32)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
