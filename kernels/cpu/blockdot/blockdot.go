// Package blockdot has the inner tiles of every product with weights that are blocks of a file
// (tensor.Encoding.Stored). Weights lie in the CPU's layout, which has the bits of the file in another
// order.
//
// Few rows of activations are multiplied with blocks as they lie. For more rows, tiles of weights are
// unpacked into a panel once, and all rows are multiplied with that: signed bytes (of FP8 several
// for a value), and scales and minima as float32. The tile unit (package amx) takes panels too. On AVX2
// panels of Q4_0 and Q4_K have the four bits of each value, 0 to 15, whose products are added in 16 bits.
//
// The result is defined to the bit. For each group of 32 columns, in rising order: the exact integer
// sum d of each 16 or 32 columns that share a scale, sum = FMA(d as float32, wscale * xscale rounded
// to float32, sum), and where the encoding has minima, sum = FMA(minimum, the negative sum of the
// group's activations * xscale rounded to float32, sum). kernels/ref (MatMulQ) computes it so. Every
// level, every number of rows and the tile unit give the same bits, and callers must not split K but
// where they multiply with panels, from the first group on.
package blockdot

import (
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

const (
	// Rows is the most rows of activations a tile can take; see Funcs.
	Rows = 8
	// UnitRows is the number of rows that activations for the tile unit are prepared for. It takes as
	// many or fewer (Tile.Count).
	UnitRows = amx.Rows
	// Group is the number of columns of activations that share a scale.
	Group = tensor.BlockGroup

	tileRows = tensor.TileRows
)

// Tile is one call: Out[m][n] = X[m] . W[n] for the 16*Tiles weight rows n.
type Tile struct {
	P unsafe.Pointer // rows of activations that Kernels.Prepare wrote
	// W is the first weight tile, S what lies with its scales; the others follow. A panel has both
	// for each group, and in it for each tile.
	W, S  unsafe.Pointer
	Table unsafe.Pointer // Kernels.Table
	// Out are rows of 16*Tiles results; no two overlap. A product with a panel adds to them. Unpack
	// writes the values and scales of a panel to the first two.
	Out [Rows]*float32
	// Groups is the number of groups of 32 columns. Tiles >= 1.
	Groups, Tiles int
	Ahead         int // the prefetch distance of weights in bytes
	// Step and SmallStep are the bytes from group to group of a panel: Kernels.Panel of all its tiles.
	Step, SmallStep int

	// For the tile unit: all rows of results begin at Out[0], RowStep bytes apart, and there is room
	// for UnitRows. Count of the rows are wanted.
	RowStep, Count int
	Config         *amx.Config // of Count rows (Kernels.Config)
	Products       *int32      // scratch [4][16][16]
	left           int         // the routine's own
}

// Kernels are the tiles of an encoding.
type Kernels struct {
	Rows  [Rows + 1]func(*Tile) // with blocks, by the number of rows (1..Most)
	Table unsafe.Pointer        // for Tile.Table
	// Direct is the most rows that are multiplied with blocks, by several calls.
	Direct int

	Unpack func(*Tile)            // blocks to a panel
	Panels *[Rows + 1]func(*Tile) // with a panel (LeastPanel..MostPanel)
	Unit   func(*Tile)            // with a panel on the tile unit; nil without it, or where it is slower

	subs    int
	mins    bool
	width   int // bytes of a value in a panel
	prepare prepare
}

// Kind says what a panel for the tile unit has, on which its gain depends.
type Kind int

// The kinds of panels that the tile unit takes.
const (
	Plain  Kind = iota // a scale for 32 columns
	Mins               // minima too
	Digits             // values of several bytes

	Kinds // their number
)

// Kind is that of the encoding's panels.
func (k *Kernels) Kind() Kind {
	switch {
	case k.width > 1:
		return Digits
	case k.mins:
		return Mins
	}
	return Plain
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

// Panel is the size of the values and of the scales of a group of a tile in a panel.
func (k *Kernels) Panel() (values, scales int) {
	return k.width * Group * tileRows, 4 * tileRows * k.floats()
}

// floats is the number of scales and minima of a group.
func (k *Kernels) floats() int {
	if k.mins {
		return k.subs + 1
	}
	return k.subs
}

// Config configures the tile unit for some rows of activations.
func (k *Kernels) Config(rows int) amx.Config {
	c := amx.NewConfig()
	for t := range amx.Tiles {
		switch {
		case t < 4: // products
			c.Set(t, rows, amx.RowBytes)
		case t < 6:
			c.Set(t, rows, Group)
		default: // four columns a row
			c.Set(t, Group/4, amx.RowBytes)
		}
	}
	return c
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
	Of map[*tensor.Encoding]*Kernels
	// Most is the most rows of a call with blocks, and LeastPanel and MostPanel bound those
	// multiplied with a panel. 2*LeastPanel <= MostPanel+1, so that any number of rows from LeastPanel
	// on can be cut into parts of these.
	Most, LeastPanel, MostPanel int
}

// newFuncs enters the tiles of every encoding.
func newFuncs(f Funcs, of func(e *tensor.Encoding, k *Kernels)) *Funcs {
	f.Of = map[*tensor.Encoding]*Kernels{}
	for _, name := range tensor.StoredEncodings() {
		e := tensor.EncodingOf(name)
		k := &Kernels{subs: Group / e.Sub(), mins: e.HasMins(), width: 1, Direct: 2 * f.Most}
		if of(e, k); k.Rows[1] != nil {
			f.Of[e] = k
		}
	}
	return &f
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
