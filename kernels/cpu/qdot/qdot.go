// Package qdot has the inner tiles of every product with integer weights. A tile is up to eight
// rows of INT8 activations against consecutive tiles of INT3, INT4 or INT8 weights in the CPU's layout
// (package tensor), read in place.
//
// kernels/device (MatMulQ) defines the result to the bit: exact integer sums within a group, and
// groups added in rising order by one fused multiply-add each. So every level and every number of
// rows gives the same bits, and callers must not split K.
package qdot

import (
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

// Rows is the most rows of activations a tile can take; see Funcs.Most.
const Rows = 8

// Tile is one call: Out[m][n] = X[m] . W[n] for the 16*Tiles weight rows n. It lives in the
// caller's scratch so that a call allocates nothing.
type Tile struct {
	X     [Rows]*int8    // rows of K values
	Scale [Rows]*float32 // a scale for each group of X
	Bias  [Rows]*int32   // -8 times the sum of each group of X
	Out   [Rows]*float32 // rows of 16*Tiles results; no two overlap
	// W is the first weight tile, S its scales (bfloat16); the others follow.
	W, S unsafe.Pointer
	// K is the padded number of columns; Steps are the blocks of 32 in a group, and divide K/32.
	// Tiles >= 1.
	K, Steps, Tiles int
	// Ahead is the prefetch distance of weights in bytes, 0 for no prefetch. Tiles of more than six
	// rows have a separate distance.
	Ahead int
}

// Kernels are the tiles of an encoding by the number of rows (1..Most).
type Kernels = [Rows + 1]func(*Tile)

// Funcs are the tiles of one level.
type Funcs struct {
	Of   map[*tensor.Encoding]*Kernels
	Most int
}

// At returns the tiles of a level that Resolve has accepted. Level AVX512 has its own only where
// the processor has VNNI.
func At(l level.Level) *Funcs {
	if l == level.AVX512 && !level.VNNI() {
		l = level.AVX2
	}
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
