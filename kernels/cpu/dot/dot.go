// Package dot has the inner tiles of every matrix product: up to four rows of activations against
// consecutive rows of weights as they lie in the file.
//
// This package makes results independent of the batch: whatever the shape of a tile, the product of
// one row and one weight row is a single vector accumulator that walks K in one fixed order, with
// one fixed sum of its lanes and one fixed tail. So a result has the same bits in every tile shape;
// callers must not split K.
package dot

import (
	"unsafe"

	"krater/kernels/cpu/level"
)

// Rows is the most rows of activations a tile takes.
const Rows = 4

// Tile is one call: Out[m][n] = X[m] . W[n] for n < N. It lives in the caller's scratch so that a
// call allocates nothing.
type Tile struct {
	// X are rows of K values: natural order for F32 weights; packed order (package convert), padded
	// with zeros, for BF16 weights.
	X [Rows]*float32
	// Out are rows of N results.
	Out [Rows]*float32
	// W is the first weight row; need only be aligned to its element.
	W unsafe.Pointer
	// Stride is the distance of weight rows in bytes.
	Stride int
	K, N   int
	// Ahead is how many bytes ahead of its use a tile of one row of activations asks for weights; 0: not at all.
	Ahead int
}

// Funcs are the tiles of one level, indexed by the number of rows (1..Rows; element 0 is nil).
type Funcs struct {
	F32  [Rows + 1]func(*Tile)
	BF16 [Rows + 1]func(*Tile)
}

// At returns the tiles of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
