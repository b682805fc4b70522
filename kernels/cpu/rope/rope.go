// Package rope rotates pairs of elements (RoFormer, arXiv 2104.09864).
package rope

import "krater/kernels/cpu/level"

// Funcs are the kernels of one level. Both turn, in every one of heads heads that start stride
// elements apart at x, the first dim elements (dim even) by the angles of table: dim/2 pairs (cos,
// sin).
type Funcs struct {
	// Pairs turns (0,1), (2,3), ...
	Pairs func(x, table *float32, heads, stride, dim int)
	// Halves turns (i, i+dim/2).
	Halves func(x, table *float32, heads, stride, dim int)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
