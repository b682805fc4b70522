package cpu

import (
	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

// quantPack is some rows of activations packed for the tile unit, once for all parts of a matrix
// that they are multiplied with.
type quantPack struct {
	tokens      qtile.Tokens
	first, last int // rows
}

// appendPacks cuts rows [first, first+rows) into packs of the size that the unit takes at a time.
func appendPacks(packs []quantPack, first, rows int) []quantPack {
	n := (rows + qtile.MostTokens - 1) / qtile.MostTokens
	for i := range n {
		packs = append(packs, quantPack{first: first + i*rows/n, last: first + (i+1)*rows/n})
	}
	return packs
}

// packScratch returns the float32 values of memory that packs take for a product.
func (p *quantProduct) packScratch(packs []quantPack) (n int) {
	for i := range packs {
		n += piece(qtile.TokensScratch(packs[i].last-packs[i].first, p.k, p.group()))
	}
	return n
}

// begin assigns memory to the packs.
func (p *quantProduct) begin(packs []quantPack, memory *arena) {
	for i := range packs {
		x := &packs[i]
		x.tokens.Begin(x.last-x.first, p.k, p.group(), memory.take(qtile.TokensScratch(x.last-x.first, p.k, p.group())))
	}
}

// packRow packs row r. Different rows may be packed at the same time.
func packRow(packs []quantPack, r int, q *int8, scale *float32) {
	i := 0
	for r >= packs[i].last {
		i++
	}
	packs[i].tokens.Pack(r-packs[i].first, q, scale)
}

// multiplyPacked is multiply for rows that are packed: in and out name the same rows as packs do,
// from row on. No packs: without the unit.
func (p *quantProduct) multiplyPacked(d *Device, l *lane, packs []quantPack, in quantInput, out quantOutput, row, rows, from, to int) {
	if end := p.pairs(from, to); len(packs) > 0 && end > from {
		l.arena.clear()
		scratch := l.arena.take(qtile.Scratch(p.group()))
		for i := range packs {
			l.unit.Begin(&packs[i].tokens, scratch)
			p.unitTiles(l, out, packs[i].first, packs[i].last, from, end)
		}
		from = end
	}
	if out.index != nil {
		out.index = out.index[row:]
	} else {
		out.first = row
	}
	p.stream(d, l, in, out, rows, from, to)
}

// pairs returns the end of the whole tiles from from on, an even number of them, before to: what
// the unit takes of [from, to).
func (p *quantProduct) pairs(from, to int) int {
	return max(from, from+(min(to, p.n/tensor.TileRows)-from)/2*2)
}

// evenCut is part p of cut of n tiles, on even bounds: the unit takes two at a time.
func evenCut(p, cut, n int) (from, to int) {
	pairs := (n + 1) / 2
	return min(n, p*pairs/cut*2), min(n, (p+1)*pairs/cut*2)
}
