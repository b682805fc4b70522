package cpu

import (
	"unsafe"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/level"
	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

// unitUse says the number of rows from which integer products go to the tile unit (packages qtile and
// blockdot); zero: never. Groups of 64 to 127 columns, of more, and blocks of a file by the kind of their
// panels. For integers in groups of 32 there is no gain: their scales take as long as their products.
type unitUse struct {
	fine, coarse int
	blocks       [blockdot.Kinds]int
}

// unitFrom uses the unit for every product that it can make, from the given number of rows on.
func unitFrom(rows int) unitUse {
	u := unitUse{fine: rows, coarse: rows}
	for kind := range u.blocks {
		u.blocks[kind] = rows
	}
	return u
}

// unitFor is where the unit overtakes AVX-512 VNNI, measured on Sapphire and Emerald Rapids: with 8
// rows it is 0.7 to 1.4 times as fast, with 16 rows 1.2 to 1.5 times, with 32 to 128 rows 1.4 to
// 3.5 times. FP8 is 1.06 to 1.7 times as fast from 12 rows on; other blocks go there where Probe finds
// that they gain (bench/results/native-blocks.md).
func unitFor(l level.Level) unitUse {
	if l < level.AVX512 || qtile.Available() != nil {
		return unitUse{}
	}
	u := unitUse{fine: 16, coarse: 16}
	u.blocks[blockdot.Digits] = 16
	return u
}

func (u unitUse) takes(p *quantProduct, rows int) bool {
	group, from := p.group(), u.coarse
	switch {
	case p.blocks != nil && p.blocks.Unit != nil:
		from = u.blocks[p.blocks.Kind()]
	case p.unit == nil || group < 64 || !qtile.Can(group):
		return false
	case group < 128:
		from = u.fine
	}
	return from > 0 && rows >= from
}

// scratch returns the scratch that multiply takes of a lane's arena: about MostTokens rows of k
// bytes if the unit is used. Blocks have memory of their own.
func (u unitUse) scratch(p *quantProduct, rows int) int {
	if p.blocks != nil || !u.takes(p, rows) {
		return 0
	}
	group := p.group()
	return piece(qtile.Scratch(group)) + piece(qtile.TokensScratch(qtile.MostTokens, p.k, group))
}

// onUnit is multiply for the pairs of whole tiles in [from, to). It returns the first tile that it
// did not process.
func (p *quantProduct) onUnit(l *lane, in quantInput, out quantOutput, rows, from, to int) int {
	end := p.pairs(from, to)
	if end == from {
		return from
	}
	calls := (rows + qtile.MostTokens - 1) / qtile.MostTokens
	group := p.group()
	l.arena.clear()
	scratch := l.arena.take(qtile.Scratch(group))
	packed := l.arena.take(qtile.TokensScratch(qtile.MostTokens, p.k, group))
	for c := range calls {
		first, last := c*rows/calls, (c+1)*rows/calls
		l.tokens.Begin(last-first, p.k, group, packed)
		for j := first; j < last; j++ {
			q, scale, _ := in.row(pick(in.index, in.first, j))
			l.tokens.Pack(j-first, q, scale)
		}
		l.unit.Begin(&l.tokens, scratch)
		p.unitTiles(l, out, first, last, from, end)
	}
	return end
}

// unitTiles multiplies the packed tokens of l.unit, rows [first, last) of out, by tiles [from,
// end), an even number of whole tiles.
func (p *quantProduct) unitTiles(l *lane, out quantOutput, first, last, from, end int) {
	for tile := from; tile < end; tile += 2 {
		l.unit.Multiply(p.unit, unsafe.Add(p.w, tile*p.tileBytes), unsafe.Add(p.s, tile*p.scaleBytes), p.tileBytes, p.scaleBytes)
		for j := first; j < last; j++ {
			row := rowAt(out.base, out.stride, pick(out.index, out.first, j))
			l.unit.Result(j-first, (*float32)(unsafe.Add(unsafe.Pointer(row), 4*tensor.TileRows*tile)))
		}
	}
}
