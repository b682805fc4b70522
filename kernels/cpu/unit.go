package cpu

import (
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

// unitUse says when integer products go to the tile unit (package qtile): from
// rows rows of activations on, for groups of columns columns and more. Zero rows:
// never.
type unitUse struct{ rows, columns int }

// unitFor is where the unit overtakes AVX-512 VNNI, measured on Sapphire and
// Emerald Rapids: 1.3 times as fast with 8 rows of groups of 128 and 1.8 to 3
// times with 16 to 128 rows; no gain for groups of 32, whose scales take as long
// as their products.
func unitFor(l level.Level) unitUse {
	if l < level.AVX512 || qtile.Available() != nil {
		return unitUse{}
	}
	return unitUse{rows: 8, columns: 128}
}

func (u unitUse) takes(p *quantProduct, rows int) bool {
	group := p.group()
	return u.rows > 0 && rows >= u.rows && group >= u.columns && qtile.Can(group)
}

// scratch is what multiply takes of a lane's arena: about MostTokens rows of k
// bytes where the unit is used.
func (u unitUse) scratch(p *quantProduct, rows int) int {
	if !u.takes(p, rows) {
		return 0
	}
	group := p.group()
	return piece(qtile.Scratch(group)) + piece(qtile.TokensScratch(qtile.MostTokens, p.k, group))
}

// onUnit is multiply for pairs of whole tiles, as many as there are in [from,
// to); it returns the first tile it left.
func (p *quantProduct) onUnit(l *lane, in quantInput, out quantOutput, rows, from, to int) int {
	end := from + (min(to, p.n/tensor.TileRows)-from)/2*2
	if end <= from {
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

// unitTiles multiplies the packed tokens of l.unit, rows [first, last) of out, with
// tiles [from, end), whole ones and an even number.
func (p *quantProduct) unitTiles(l *lane, out quantOutput, first, last, from, end int) {
	for tile := from; tile < end; tile += 2 {
		l.unit.Multiply(unsafe.Add(p.w, tile*p.tileBytes), unsafe.Add(p.s, tile*p.scaleBytes), p.bits)
		for j := first; j < last; j++ {
			row := rowAt(out.base, out.stride, pick(out.index, out.first, j))
			l.unit.Result(j-first, (*float32)(unsafe.Add(unsafe.Pointer(row), 4*tensor.TileRows*tile)))
		}
	}
}
