// Package axpy accumulates weighted sums of rows: the "probabilities times values" half of
// attention, the weighted sum of experts, and the absorption of kv_b. Every element of the result
// is one chain of multiply-adds over the rows in rising order, held in memory between calls; so it
// has the same bits however the rows are cut into calls and whatever else is in the tile.
package axpy

import (
	"unsafe"

	"krater/kernels/cpu/level"
)

// Rows is the most result rows a tile takes.
const Rows = 4

// Tile is one call: Acc[m][i] += sum over j < N of P[m][j] * W[j][i], i < Width.
type Tile struct {
	// P are rows of N factors.
	P [Rows]*float32
	// Acc are result rows: Width values in natural order for F32 rows; padded and in packed order
	// (package convert) for BF16 rows.
	Acc [Rows]*float32
	// W is the first row; need only be aligned to its element.
	W unsafe.Pointer
	// Stride is the distance of rows in bytes.
	Stride   int
	N, Width int
}

// Funcs are the kernels of one level. Tiles are indexed by the number of result rows (1..Rows;
// element 0 is nil).
type Funcs struct {
	F32  [Rows + 1]func(*Tile)
	BF16 [Rows + 1]func(*Tile)
	// Add is dst += src.
	Add func(dst, src *float32, n int)
	// Scale is dst *= factor.
	Scale func(dst *float32, n int, factor float32)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
