// Package qdot has the inner tiles of every product with integer weights. A tile is up to 16
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

// Rows is the most rows of activations a tile can take; see Kernels.Most.
const Rows = 16

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
	// Of tiles of many rows: their number, aligned memory, and the bytes of a weight tile and of its scales.
	rows                  int
	scratch               unsafe.Pointer
	tileBytes, scaleBytes int
	memory                [manySize + 64]byte
}

// Kernels are the tiles of an encoding by the number of rows (1..Most).
type Kernels []func(*Tile)

// Most is the number of rows that a tile takes at most.
func (k Kernels) Most() int { return len(k) - 1 }

// Funcs are the tiles of one level.
type Funcs map[*tensor.Encoding]Kernels

// At returns the tiles of a level that Resolve has accepted. Level AVX512 has its own only where
// the processor has VNNI.
func At(l level.Level) Funcs {
	if l == level.AVX512 && !level.VNNI() {
		l = level.AVX2
	}
	if f := vector(l); f != nil {
		return f
	}
	return pure
}

// The most weight tiles that tiles of many rows take at once, and the bytes of their memory; see _gen/qdotmany.go.
const (
	manyTiles = 16
	manySize  = Rows*(32*9+32) + 2*manyTiles*Rows*64
)

// many makes tiles of a kernel that takes some rows and at most manyTiles weight tiles of INT4.
func many(kernel func(*Tile), rows int) func(*Tile) {
	return func(t *Tile) {
		t.rows, t.tileBytes, t.scaleBytes = rows, t.K*tileRows/2, t.K/t.Steps
		t.scratch = unsafe.Pointer(&t.memory[-uintptr(unsafe.Pointer(&t.memory))%64])
		w, s, out, tiles := t.W, t.S, t.Out, t.Tiles
		parts := (tiles + manyTiles - 1) / manyTiles
		for i := range parts {
			from, to := i*tiles/parts, (i+1)*tiles/parts
			t.W, t.S, t.Tiles = unsafe.Add(w, from*t.tileBytes), unsafe.Add(s, from*t.scaleBytes), to-from
			for m := range rows {
				t.Out[m] = (*float32)(unsafe.Add(unsafe.Pointer(out[m]), 4*tileRows*from))
			}
			kernel(t)
		}
		t.W, t.S, t.Out, t.Tiles = w, s, out, tiles
	}
}
