package cpu

import (
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

// quantPack is some rows of activations packed once for all parts of a matrix that they are multiplied
// with: for the tile unit, or for weights that are blocks.
type quantPack struct {
	tokens      qtile.Tokens
	blocks      blockRows
	first, last int // rows
}

// blockRows are rows prepared for blocks.
type blockRows struct {
	*blockdot.Kernels
	at     unsafe.Pointer
	width  int // of a call: the rows, or what the tile unit takes
	groups int
	config amx.Config // with that width
}

// packed reports whether many rows are packed once for all parts.
func (d *Device) packed(p *quantProduct, rows int) bool {
	return d.unit.takes(p, rows) || p.blocks != nil && rows > p.blocks.Direct
}

// appendPacks cuts rows [first, first+rows) into packs of the size that a call takes.
func (p *quantProduct) appendPacks(d *Device, packs []quantPack, first, rows int) []quantPack {
	most, unit := qtile.MostTokens, d.unit.takes(p, rows)
	switch {
	case p.blocks != nil && unit:
		most = blockdot.UnitRows
	case p.blocks != nil && rows <= p.blocks.Direct:
		most = d.blockdot.Most
	case p.blocks != nil:
		most = d.blockdot.MostPanel
	}
	n := (rows + most - 1) / most
	for i := range n {
		x := quantPack{first: first + i*rows/n, last: first + (i+1)*rows/n}
		if p.blocks != nil {
			x.blocks = blockRows{Kernels: p.blocks, width: x.last - x.first, groups: p.k / blockdot.Group}
			if unit {
				x.blocks.width, x.blocks.config = blockdot.UnitRows, p.blocks.Config(x.last-x.first)
			}
		}
		packs = append(packs, x)
	}
	return packs
}

// scratch returns the float32 values of memory that a pack takes for a product.
func (x *quantPack) scratch(p *quantProduct) int {
	if p.blocks != nil {
		return x.blocks.groups * p.blocks.Step(x.blocks.width) / 4
	}
	return qtile.TokensScratch(x.last-x.first, p.k, p.group())
}

// packScratch returns the float32 values of memory that packs take for a product.
func (p *quantProduct) packScratch(packs []quantPack) (n int) {
	for i := range packs {
		n += piece(packs[i].scratch(p))
	}
	return n
}

// begin assigns memory to the packs.
func (p *quantProduct) begin(packs []quantPack, memory *arena) {
	for i := range packs {
		x := &packs[i]
		at := memory.take(x.scratch(p))
		if p.blocks != nil {
			x.blocks.at = unsafe.Pointer(at)
		} else {
			x.tokens.Begin(x.last-x.first, p.k, p.group(), at)
		}
	}
}

// packRow packs row r. Different rows may be packed at the same time.
func packRow(packs []quantPack, r int, q *int8, scale *float32, bias *int32) {
	i := 0
	for r >= packs[i].last {
		i++
	}
	x := &packs[i]
	if x.blocks.Kernels != nil {
		x.blocks.Prepare(x.blocks.at, r-x.first, x.blocks.width, q, scale, bias, x.blocks.groups)
	} else {
		x.tokens.Pack(r-x.first, q, scale)
	}
}

// multiplyPacked is multiply for rows that are packed: in and out name the same rows as packs do,
// from row on. No packs: without the unit.
func (p *quantProduct) multiplyPacked(d *Device, l *lane, packs []quantPack, in quantInput, out quantOutput, row, rows, from, to int) {
	if len(packs) > 0 && p.blocks != nil {
		l.prepared.reset(p.blockScratch(packs, to-from))
		p.multiplyBlocks(d, l, packs, out, from, to)
		return
	}
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
	if p.blocks != nil { // another expert of the group is packed, or the other matrix
		p.streamBlocks(d, l, in, out, rows, from, to)
		return
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
