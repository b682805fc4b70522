// Package btile multiplies rows of float32 activations by a matrix of BF16 weights on the tile unit
// (package amx).
//
// The unit multiplies BF16 only, so an activation is the sum of two such numbers, its upper and its
// lower bits, each of which is multiplied: 16 of its 24 bits count. The unit adds in its own order,
// and treats denormal numbers as zero. Results therefore differ from those of package dot by
// roundings, but a result has the same bits for every number of tokens in a call. A row of
// activations that is not finite (or within half a BF16 step of it) gives NaN.
package btile

import (
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/level"
)

const (
	// Columns is the number of columns of one step of the unit; K is a multiple of it.
	Columns = 32
	// MostTokens is the most tokens of a call.
	MostTokens = 2 * amx.Rows
	// WeightRows is the number of weight rows of a block.
	WeightRows = 2 * amx.Rows

	tile = amx.Rows * amx.RowBytes
)

// Available is nil when the unit can be used, else says why not.
func Available() error { return amx.BF16() }

// Funcs are the kernels of the unit, or those in plain Go that compute the same.
type Funcs struct {
	single, one, two func(*Tile)
	tokens           func(*Block)
	token            func(row, out *float32, steps int)
	weigh            func(*Weigh)
}

// At returns the kernels of a level that Resolve has accepted: in plain Go for level.Pure, else those of the unit, which has to
// be available.
func At(l level.Level) *Funcs {
	if l == level.Pure {
		return &pure
	}
	return &unit
}

// Tile is one call. It is known to the assembly by its offsets.
type Tile struct {
	config    *amx.Config
	x         unsafe.Pointer // packed tokens
	w         uintptr        // the routine moves it on, past the end: a pointer must not be there
	out       *float32
	products  *float32       // scratch: [16][16]
	wStride   int            // bytes from a weight row to the next
	outStride int            // bytes from a token's results to the next's
	steps     int            // of 32 columns
	blocks    int            // of 32 weight rows
	tokens    int            // 1..32
	ahead     int            // bytes from a weight to one that is asked for; 0: nothing is
	base      unsafe.Pointer // what w was; for pure
}

// Block packs the 16 tokens of a tile. The kernels also know its offsets.
type Block struct {
	rows  [amx.Rows]*float32
	out   unsafe.Pointer
	steps int
	next  int // bytes from a step to the next
	low   int // bytes from upper to lower bits
}

// configs: one token's tiles are a value wide.
var single, full = newConfig(4), newConfig(amx.RowBytes)

func newConfig(tokenBytes int) *amx.Config {
	c := amx.NewConfig()
	for t := range amx.Tiles {
		if t < 6 {
			c.Set(t, amx.Rows, tokenBytes)
		} else {
			c.Set(t, amx.Rows, amx.RowBytes)
		}
	}
	return &c
}

// Ahead is a distance for weights that come from memory: 32 rows side by side are more than the cores' own prefetchers follow.
const Ahead = 512

// Can reports whether a matrix [n, k] of BF16 has something for the unit; the last n % WeightRows
// rows are not for it.
func Can(n, k int) bool { return k%Columns == 0 && n >= WeightRows }

// tiles returns the number of tiles of tokens.
func tiles(tokens int) int { return (tokens + amx.Rows - 1) / amx.Rows }

// Pack packs tokens rows of k values, which follow one another stride values apart in packed order
// (package convert), to dst, aligned to 64 bytes.
func (f *Funcs) Pack(b *Block, dst, x *float32, stride, tokens, k int) {
	if tokens == 1 {
		f.token(x, dst, k/Columns)
		return
	}
	n := tiles(tokens)
	b.steps, b.next, b.low = k/Columns, 2*n*tile, n*tile
	for t := range n {
		for i := range b.rows {
			// Rows that are missing are some other row; their results are not stored.
			row := min(t*amx.Rows+i, tokens-1)
			b.rows[i] = (*float32)(unsafe.Add(unsafe.Pointer(x), 4*stride*row))
		}
		b.out = unsafe.Add(unsafe.Pointer(dst), t*tile)
		f.tokens(b)
	}
}

// Products is the float32 values of scratch of a Tile.
const Products = amx.Rows * amx.Rows

// Multiply writes out[t][n] = x[t] . w[n] for tokens packed tokens of k columns and 32*blocks
// weight rows, which begin wStride bytes apart. outStride is in values. Scratch of Products values
// is aligned to 64 bytes. Weights ahead bytes further are asked for; 0: none are.
func (f *Funcs) Multiply(t *Tile, out *float32, outStride int, packed *float32, tokens, k int, w unsafe.Pointer, wStride, blocks, ahead int, scratch *float32) {
	*t = Tile{
		config: full, x: unsafe.Pointer(packed), w: uintptr(w), out: out, products: scratch,
		wStride: wStride, outStride: 4 * outStride, steps: k / Columns, blocks: blocks, tokens: tokens, ahead: ahead, base: w,
	}
	switch {
	case tokens == 1:
		t.config = single
		f.single(t)
	case tiles(tokens) == 1:
		f.one(t)
	default:
		f.two(t)
	}
}
