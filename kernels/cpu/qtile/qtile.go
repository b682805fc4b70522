// Package qtile multiplies blocks of tokens by packed INT3, INT4 or INT8 weights on the tile unit
// (package amx). The results have the bits of package qdot; kernels/device (MatMulQ) defines the
// arithmetic.
//
// A line of packed weights is a row of the unit's weight tile: INT8 lines become signed bytes by a
// change of the top bit, INT4 lines become two rows, one of low and one of high nibbles, and three
// INT3 lines become eight.
package qtile

import (
	"runtime"
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/tensor"
)

const (
	// Columns is the number of columns of one step of the unit; groups are multiples of it.
	Columns = 64
	// MostGroup bounds the scratch. Unpacked weights of a group up to sliceColumns stay in the
	// first-level cache, of larger ones in the second-level cache.
	MostGroup = 4096
	// BlockTokens is the most tokens of a block: two tiles.
	BlockTokens = 32
	// MostBlocks bounds the tokens of a call, so that their sums stay near.
	MostBlocks = 4
	// MostTokens is the largest number of tokens of a Work.
	MostTokens = MostBlocks * BlockTokens
	// WeightRows is the number of weight rows of one call: two bands of packed weights.
	WeightRows = 2 * tensor.TileRows

	sliceColumns = 256 // of weights unpacked at a time
	tileRows     = tensor.TileRows
)

// Available is nil when the unit can be used, else says why not.
func Available() error { return amx.Int8() }

// Tile is one call. It is known to the assembly by its offsets. What the routine moves on are numbers: at
// its end they point past the end of their arrays, which a pointer must not. The caller keeps the arrays.
type Tile struct {
	config      *amx.Config
	a           uintptr  // int8 [blocks][K/64][2][16][64]
	scale       uintptr  // float32 [blocks][groups][2][16]
	w, s        uintptr  // the first weight tile's values and scales
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
	aBlock, scaleBlock uintptr
}

// Kernel multiplies by weights of one encoding.
type Kernel func(*Tile)

// Kernels has the kernel of each encoding that the unit supports.
var Kernels = map[*tensor.Encoding]Kernel{tensor.INT3: int3Blocks, tensor.INT4: int4Blocks, tensor.INT8: int8Blocks}

// Can reports whether groups of the given number of columns are supported.
func Can(group int) bool { return group%Columns == 0 && group <= MostGroup }

const pad = 16 // float32 values; pieces of scratch begin at 64 bytes

// carver hands out pieces of scratch.
type carver struct {
	base *float32
	at   int // float32 values
}

func (c *carver) take(n int) unsafe.Pointer {
	p := unsafe.Add(unsafe.Pointer(c.base), 4*c.at)
	c.at += (n + pad - 1) &^ (pad - 1)
	return p
}

// Tokens is some tokens, packed for the unit: written by Pack, then read by any number of Works at
// once. It lives in the caller's scratch.
type Tokens struct {
	k, group, groups int
	blocks, rows     int // rows: tokens of a tile, 4, 8, 12 or 16
	a                *int8
	scale            *float32
}

// TokensScratch returns the float32 values that m tokens of k columns in groups take.
func TokensScratch(m, k, group int) int {
	n := (m + BlockTokens - 1) / BlockTokens * BlockTokens
	return n*k/4 + n*(k/group) + 2*pad
}

// Begin prepares for m <= MostTokens tokens of k columns (a multiple of 64) in groups that Can be,
// with scratch of TokensScratch values aligned to 64 bytes. Rows are as few as the tokens allow,
// since the unit's time goes with them: 48 tokens are two blocks of 24.
func (t *Tokens) Begin(m, k, group int, scratch *float32) {
	blocks := (m + BlockTokens - 1) / BlockTokens
	rows := (m + 2*blocks - 1) / (2 * blocks)
	c := carver{base: scratch}
	*t = Tokens{k: k, group: group, groups: k / group, blocks: blocks, rows: (rows + 3) &^ 3}
	t.a = (*int8)(c.take(blocks * BlockTokens * k / 4))
	t.scale = (*float32)(c.take(blocks * BlockTokens * t.groups))
}

// place is where token i goes: its block, tile of the block and row.
func (t *Tokens) place(i int) (block, tile, row int) {
	return i / (2 * t.rows), i / t.rows % 2, i % t.rows
}

// Pack packs token i: k values and a scale a group. Different tokens may be packed by several
// goroutines at once.
func (t *Tokens) Pack(i int, q *int8, scale *float32) {
	block, tile, row := t.place(i)
	to := unsafe.Add(unsafe.Pointer(t.a), block*BlockTokens*t.k+(tile*tileRows+row)*Columns)
	for i := range t.k / Columns { // the pointer must not point past the end of its array
		*(*[Columns]int8)(unsafe.Add(to, 2*tileRows*Columns*i)) = *(*[Columns]int8)(unsafe.Add(unsafe.Pointer(q), Columns*i))
	}
	scales := unsafe.Slice(t.scale, t.blocks*BlockTokens*t.groups)
	for g, v := range unsafe.Slice(scale, t.groups) {
		scales[(block*t.groups+g)*BlockTokens+tile*tileRows+row] = v
	}
}

// Scratch returns the float32 values that a Work needs for groups of the given number of columns.
func Scratch(group int) int {
	return WeightRows*max(sliceColumns, group)/4 + 4*tileRows*tileRows*(1+MostBlocks) + 3*pad
}

// Work multiplies packed tokens. It is stored in the caller's scratch.
type Work struct {
	tile   Tile
	call   Tile // the one at hand: the routine changes it
	config amx.Config
	tokens *Tokens
}

// Begin prepares for tokens, with scratch of Scratch(group) values aligned to 64 bytes.
func (w *Work) Begin(t *Tokens, scratch *float32) {
	w.tokens = t
	w.config = amx.NewConfig()
	for i := range amx.Tiles {
		n := t.rows
		if i >= 6 {
			n = tileRows // weights: 4 columns a row
		}
		w.config.Set(i, n, Columns)
	}
	c := carver{base: scratch}
	w.tile = Tile{
		config:      &w.config,
		panel:       (*int8)(c.take(WeightRows * max(sliceColumns, t.group) / 4)),
		products:    (*int32)(c.take(4 * tileRows * tileRows)),
		sums:        (*float32)(c.take(t.blocks * 4 * tileRows * tileRows)),
		a:           uintptr(unsafe.Pointer(t.a)),
		scale:       uintptr(unsafe.Pointer(t.scale)),
		aStride:     BlockTokens * t.k,
		scaleStride: 4 * BlockTokens * t.groups,
		sliceGroups: max(1, sliceColumns/t.group),
		steps:       t.group / Columns,
		blocks:      t.blocks, rows: t.rows,
	}
}

// Multiply computes 32 weight rows for every token. values and scales point to two consecutive bands
// of packed weights, each of valueBytes and scaleBytes. Read the results with Result.
func (w *Work) Multiply(kernel Kernel, values, scales unsafe.Pointer, valueBytes, scaleBytes int) {
	w.call = w.tile
	w.call.w, w.call.s = uintptr(values), uintptr(scales)
	w.call.wStride, w.call.sStride = valueBytes, scaleBytes
	w.call.left = w.tokens.groups
	kernel(&w.call)
	runtime.KeepAlive(values)
	runtime.KeepAlive(scales)
	runtime.KeepAlive(w.tokens.a)
	runtime.KeepAlive(w.tokens.scale)
}

// Result copies the 32 results of token i to dst.
func (w *Work) Result(i int, dst *float32) {
	block, tile, row := w.tokens.place(i)
	type results = [tileRows]float32 // assigned, they need no call
	for half := range 2 {
		from := unsafe.Add(unsafe.Pointer(w.tile.sums), 4*(((block*2+half)*2+tile)*tileRows+row)*tileRows)
		*(*results)(unsafe.Add(unsafe.Pointer(dst), 4*half*tileRows)) = *(*results)(from)
	}
}
