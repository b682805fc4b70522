// Package qtile multiplies blocks of tokens with INT4 or INT8 weights in format B
// on the tile unit (package amx). The results have the bits of package qdot: the
// arithmetic is laid down in kernels/device (MatMulQ).
//
// A line of format B is a row of the unit's weight tile as it lies: INT8 lines
// become signed bytes by a change of the top bit, INT4 lines two rows, one of low
// and one of high nibbles.
package qtile

import (
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/tensor"
)

const (
	// Columns is what a step of the unit takes; groups are multiples of it.
	Columns = 64
	// MostGroup bounds the scratch. Unpacked weights of a group up to sliceColumns stay
	// in the first-level cache, of larger ones in the second-level cache.
	MostGroup = 4096
	// BlockTokens is the most tokens of a block: two tiles.
	BlockTokens = 32
	// MostBlocks bounds the tokens of a call, so that their sums stay near.
	MostBlocks = 4
	// MostTokens is what a Work takes at a time.
	MostTokens = MostBlocks * BlockTokens
	// WeightRows is what a call multiplies with: two tiles of format B.
	WeightRows = 2 * tensor.TileRows

	sliceColumns = 256 // of weights unpacked at a time
	tileRows     = tensor.TileRows
)

// Available is nil when the unit can be used, else says why not.
func Available() error { return amx.Int8() }

// Tile is one call. It is known to the assembly by its offsets.
type Tile struct {
	config      *amx.Config
	a           *int8    // [blocks][K/64][2][16][64]
	scale       *float32 // [blocks][groups][2][16]
	w, s        unsafe.Pointer
	panel       *int8    // scratch: a slice of 32 weight rows
	products    *int32   // scratch: [4][16][16]
	sums        *float32 // [blocks][4][16][16]: tokens of a tile by weight rows of a tile
	wStride     int      // bytes from a weight tile's values to the next's
	sStride     int      // and of its scales
	aStride     int      // bytes of a block's tokens
	scaleStride int      // bytes of a block's scales
	sliceGroups int
	steps       int // of 64 columns in a group
	blocks      int
	rows        int // tokens of a tile: 4, 8, 12 or 16
	left        int // groups; counts down
	// The routine's own.
	now, block         int
	aBlock, scaleBlock unsafe.Pointer
}

// Can reports whether groups of so many columns are possible.
func Can(group int) bool { return group%Columns == 0 && group <= MostGroup }

// Scratch is the float32 values a Work needs for rows of k columns in groups.
func Scratch(k, group int) int {
	return (MostTokens*k+WeightRows*max(sliceColumns, group))/4 + MostTokens*k/group + 4*tileRows*tileRows*(1+MostBlocks) + 5*pad
}

const pad = 16 // float32 values; pieces of scratch begin at 64 bytes

// Work is some tokens, packed for the unit. It lives in the caller's scratch.
type Work struct {
	tile   Tile
	config amx.Config
	m, k   int
	groups int
}

// Begin prepares for m <= MostTokens tokens of k columns (a multiple of 64) in
// groups that Can be, with scratch of Scratch(k, group) values aligned to 64 bytes.
// Rows are as few as the tokens allow, since the unit's time goes with them: 48
// tokens are two blocks of 24.
func (w *Work) Begin(m, k, group int, scratch *float32) {
	blocks := (m + BlockTokens - 1) / BlockTokens
	rows := (m + 2*blocks - 1) / (2 * blocks)
	rows = (rows + 3) &^ 3
	w.m, w.k, w.groups = m, k, k/group
	w.config = amx.NewConfig()
	for t := range amx.Tiles {
		n := rows
		if t >= 6 {
			n = tileRows // weights: 4 columns a row
		}
		w.config.Set(t, n, Columns)
	}
	at := 0
	take := func(n int) unsafe.Pointer {
		p := unsafe.Add(unsafe.Pointer(scratch), 4*at)
		at += (n + pad - 1) &^ (pad - 1)
		return p
	}
	w.tile = Tile{
		config:      &w.config,
		panel:       (*int8)(take(WeightRows * max(sliceColumns, group) / 4)),
		products:    (*int32)(take(4 * tileRows * tileRows)),
		sums:        (*float32)(take(blocks * 4 * tileRows * tileRows)),
		a:           (*int8)(take(blocks * BlockTokens * k / 4)),
		scale:       (*float32)(take(blocks * BlockTokens * w.groups)),
		aStride:     BlockTokens * k,
		scaleStride: 4 * BlockTokens * w.groups,
		sliceGroups: max(1, sliceColumns/group),
		steps:       group / Columns,
		blocks:      blocks, rows: rows,
	}
}

// place is where token i goes: its block, tile of the block and row.
func (w *Work) place(i int) (block, tile, row int) {
	rows := w.tile.rows
	return i / (2 * rows), i / rows % 2, i % rows
}

// Token packs token i: k values and a scale a group.
func (w *Work) Token(i int, q *int8, scale *float32) {
	block, tile, row := w.place(i)
	from := unsafe.Pointer(q)
	to := unsafe.Add(unsafe.Pointer(w.tile.a), block*w.tile.aStride+(tile*tileRows+row)*Columns)
	for range w.k / Columns {
		*(*[Columns]int8)(to) = *(*[Columns]int8)(from)
		from, to = unsafe.Add(from, Columns), unsafe.Add(to, 2*tileRows*Columns)
	}
	scales := unsafe.Slice(w.tile.scale, w.tile.blocks*BlockTokens*w.groups)
	for g, v := range unsafe.Slice(scale, w.groups) {
		scales[(block*w.groups+g)*BlockTokens+tile*tileRows+row] = v
	}
}

// Multiply computes 32 weight rows of bits (4 or 8) for every token: values and
// scales of two tiles of format B that follow one another. Read the results with
// Result.
func (w *Work) Multiply(values, scales unsafe.Pointer, bits int) {
	t := w.tile // the routine changes it
	t.w, t.s = values, scales
	t.wStride, t.sStride = w.k*tileRows*bits/8, 2*tileRows*w.groups
	t.left = w.groups
	if bits == 8 {
		int8Blocks(&t)
		return
	}
	int4Blocks(&t)
}

// Result copies the 32 results of token i to dst.
func (w *Work) Result(i int, dst *float32) {
	block, tile, row := w.place(i)
	out := unsafe.Slice(dst, WeightRows)
	for half := range 2 {
		from := (*float32)(unsafe.Add(unsafe.Pointer(w.tile.sums), 4*(((block*2+half)*2+tile)*tileRows+row)*tileRows))
		copy(out[half*tileRows:], unsafe.Slice(from, tileRows))
	}
}
