// Package blockdot has the inner tiles of every product with weights that are blocks of a file
// (tensor.Encoding.Stored). A tile is up to eight rows of INT8 activations against consecutive tiles
// of weights in the CPU's layout, which has the bits of the file in another order.
//
// The result is defined to the bit. For each group of 32 columns, in rising order: the exact integer
// sum d of each 16 or 32 columns that share a scale, sum = FMA(d as float32, wscale * xscale rounded
// to float32, sum), and where the encoding has minima, sum = FMA(minimum, the negative sum of the
// group's activations * xscale rounded to float32, sum). kernels/ref (MatMulQ) computes it so. Every
// level and every number of rows gives the same bits, and callers must not split K.
package blockdot

import (
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

const (
	// Rows is the most rows of activations a tile can take; see Funcs.Most.
	Rows = 8
	// Group is the number of columns of activations that share a scale.
	Group = tensor.BlockGroup

	tileRows = tensor.TileRows
)

// Tile is one call: Out[m][n] = X[m] . W[n] for the 16*Tiles weight rows n.
type Tile struct {
	P unsafe.Pointer // rows of activations that Kernels.Prepare wrote
	// W is the first weight tile, S what lies with its scales; the others follow.
	W, S  unsafe.Pointer
	Table unsafe.Pointer // Kernels.Table
	Out   [Rows]*float32 // rows of 16*Tiles results; no two overlap
	// Groups is the number of groups of 32 columns. Tiles >= 1.
	Groups, Tiles int
	Ahead         int // the prefetch distance of weights in bytes
}

// Kernels are the tiles of an encoding.
type Kernels struct {
	Rows  [Rows + 1]func(*Tile) // by the number of rows (1..Most)
	Table unsafe.Pointer        // for Tile.Table

	subs    int
	mins    bool
	prepare prepare
}

// prepare writes a row's parts of groups, step bytes apart: values, scale, and -8 times the sums of
// the columns that share a scale. toSecond: of the second 16 columns, or what minima are multiplied
// with.
type prepare = func(x *int8, scale *float32, bias *int32, groups, step int, toX, toScale, toBias, toSecond *byte)

// Step is the size of a group of prepared activations.
func (k *Kernels) Step(rows int) int {
	n := Group + 4 + 4*k.subs
	if k.mins {
		n += 4
	}
	return n * rows
}

// Prepare brings row m of rows to p, groups*Step(rows) bytes: x has groups*32 values, scale and bias
// one for each group (device.QRows).
func (k *Kernels) Prepare(p unsafe.Pointer, m, rows int, x *int8, scale *float32, bias *int32, groups int) {
	at := func(off int) *byte { return (*byte)(unsafe.Add(p, off)) }
	second := (Group+8)*rows + 4*m
	if !k.mins && k.subs == 1 {
		second = 0 // nothing is written
	}
	k.prepare(x, scale, bias, groups, k.Step(rows), at(Group*m), at(Group*rows+4*m), at((Group+4)*rows+4*m), at(second))
}

// Funcs are the tiles of one level.
type Funcs struct {
	Of   map[*tensor.Encoding]*Kernels
	Most int
}

// newFuncs enters the tiles of every encoding: rows gives those of one, from one row on.
func newFuncs(most int, rows func(e *tensor.Encoding) []func(*Tile), with func(e *tensor.Encoding, k *Kernels)) *Funcs {
	f := &Funcs{Of: map[*tensor.Encoding]*Kernels{}, Most: most}
	for _, name := range tensor.StoredEncodings() {
		e := tensor.EncodingOf(name)
		list := rows(e)
		if list == nil {
			continue
		}
		k := &Kernels{subs: Group / e.Sub(), mins: e.HasMins()}
		copy(k.Rows[1:], list)
		with(e, k)
		f.Of[e] = k
	}
	return f
}

// At returns the tiles of a level that Resolve has accepted. Level AVX512 has its own only where
// the processor has VNNI, VBMI and GFNI.
func At(l level.Level) *Funcs {
	if l == level.AVX512 && !(level.VNNI() && level.VBMI()) {
		l = level.AVX2
	}
	if f := vector(l); f != nil {
		return f
	}
	return pure()
}
