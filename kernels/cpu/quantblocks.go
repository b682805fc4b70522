package cpu

import (
	"unsafe"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/tensor"
)

// Weights that are blocks of a file (package blockdot) read activations in an order of their own, so
// rows are prepared: packs (quantpack.go). Few rows are multiplied with blocks as they lie. For more,
// some tiles of weights are unpacked into a panel, which all rows meet, part by part.

const (
	// preparedRows is the most rows that a lane prepares for itself at a time.
	preparedRows = 64
	// A panel stays in the second-level cache while all rows pass; the part of it that rows meet at a
	// time stays in the first-level cache.
	panelBytes, panelTiles, sliceBytes = 1 << 18, 4, 1 << 15
	// packsAtOnce bounds the sums.
	packsAtOnce = 8
)

// streamBlocks is stream for weights that are blocks.
func (p *quantProduct) streamBlocks(d *Device, l *lane, in quantInput, out quantOutput, rows, from, to int) {
	for first := 0; first < rows; first += preparedRows {
		l.packs = p.appendPacks(d, l.packs[:0], first, min(preparedRows, rows-first))
		l.prepared.reset(p.packScratch(l.packs) + p.blockScratch(l.packs, to-from))
		p.begin(l.packs, &l.prepared)
		for j := first; j < l.packs[len(l.packs)-1].last; j++ {
			q, scale, bias := in.row(pick(in.index, in.first, j))
			packRow(l.packs, j, q, scale, bias)
		}
		p.multiplyBlocks(d, l, l.packs, out, from, to)
	}
}

// direct reports whether rows are multiplied with blocks as they lie.
func (p *quantProduct) direct(packs []quantPack) bool {
	return rowsOf(packs) <= p.blocks.Direct && packs[0].blocks.width != blockdot.UnitRows
}

// rowsOf is the number of rows of packs.
func rowsOf(packs []quantPack) int { return packs[len(packs)-1].last - packs[0].first }

// blockTiles returns the number of tiles of weights at a time.
func (p *quantProduct) blockTiles(packs []quantPack, tiles int) int {
	switch {
	case p.direct(packs) && len(packs) > 1:
		return min(tiles, max(1, cacheBlock/p.tileBytes))
	case p.direct(packs):
		return min(tiles, max(1, streamBlock/p.tileBytes))
	}
	values, _ := p.blocks.Panel()
	return min(tiles, max(1, min(panelTiles, panelBytes/(p.k/blockdot.Group*values))))
}

// blockScratch returns the float32 values that multiplyBlocks takes of a lane's prepared arena.
func (p *quantProduct) blockScratch(packs []quantPack, tiles int) int {
	n := p.blockTiles(packs, tiles)
	sums := piece(p.sumRows(packs) * n * tensor.TileRows)
	if p.direct(packs) {
		return sums
	}
	values, scales := p.blocks.Panel()
	groups := n * p.k / blockdot.Group
	return sums + piece(groups*values/4) + piece(groups*scales/4) + piece(unitProducts)
}

// sumRows returns the number of rows of sums.
func (p *quantProduct) sumRows(packs []quantPack) int {
	if p.direct(packs) {
		return blockdot.Rows
	}
	return packsAtOnce * blockdot.UnitRows
}

// unitProducts is scratch of the tile unit in values.
const unitProducts = 4 * tensor.TileRows * tensor.TileRows

// multiplyBlocks multiplies prepared rows with tiles [from, to). The lane's prepared arena has room for
// blockScratch.
func (p *quantProduct) multiplyBlocks(d *Device, l *lane, packs []quantPack, out quantOutput, from, to int) {
	if from >= to {
		return
	}
	step, direct := p.blockTiles(packs, to-from), p.direct(packs)
	groups := p.k / blockdot.Group
	values, scales := p.blocks.Panel()
	memory := l.prepared
	sums := memory.take(p.sumRows(packs) * step * tensor.TileRows)
	var panel, small *float32
	t := &l.blocks
	*t = blockdot.Tile{Table: p.blocks.Table}
	if !direct {
		panel, small = memory.take(step*groups*values/4), memory.take(step*groups*scales/4)
		t.Products = (*int32)(unsafe.Pointer(memory.take(unitProducts)))
	}
	for ; from < to; from += step {
		tiles := min(step, to-from)
		t.W, t.S, t.Groups, t.Tiles = unsafe.Add(p.w, from*p.tileBytes), unsafe.Add(p.s, from*p.scaleBytes), groups, tiles
		t.Ahead = d.fetch.ahead(blockdot.Group, rowsOf(packs))
		if direct {
			for i := range packs {
				x := &packs[i]
				t.P = x.blocks.at
				setOut(t, sums, x.last-x.first)
				p.blocks.Rows[x.last-x.first](t)
				p.copySums(out, x, sums, from, tiles)
				t.Ahead = 0 // the weights are in cache now
			}
			continue
		}
		t.Step, t.SmallStep = tiles*values, tiles*scales
		t.Out[0], t.Out[1] = panel, small
		p.blocks.Unpack(t)
		for first := 0; first < len(packs); first += packsAtOnce {
			some := packs[first:min(first+packsAtOnce, len(packs))]
			clear(unsafe.Slice(sums, len(some)*blockdot.UnitRows*tiles*tensor.TileRows))
			p.multiplyPanel(t, some, unsafe.Pointer(panel), unsafe.Pointer(small), sums)
			for i := range some {
				p.copySums(out, &some[i], sumsOf(sums, i, tiles), from, tiles)
			}
		}
	}
}

// sumsOf are the sums of pack i.
func sumsOf(sums *float32, i, tiles int) *float32 {
	return rowAt(sums, tiles*tensor.TileRows, i*blockdot.UnitRows)
}

// setOut sets where a call writes rows.
func setOut(t *blockdot.Tile, sums *float32, rows int) {
	for m := range min(rows, blockdot.Rows) {
		t.Out[m] = rowAt(sums, t.Tiles*tensor.TileRows, m)
	}
}

// multiplyPanel adds the products of packs with a panel of t.Tiles tiles to sums.
func (p *quantProduct) multiplyPanel(t *blockdot.Tile, packs []quantPack, panel, small unsafe.Pointer, sums *float32) {
	groups := p.k / blockdot.Group
	slice := min(groups, max(8, sliceBytes/t.Step))
	t.RowStep = 4 * t.Tiles * tensor.TileRows
	for g := 0; g < groups; g += slice {
		t.Groups = min(slice, groups-g)
		t.W, t.S = unsafe.Add(panel, g*t.Step), unsafe.Add(small, g*t.SmallStep)
		for i := range packs {
			x := &packs[i]
			rows := x.last - x.first
			t.P = unsafe.Add(x.blocks.at, g*p.blocks.Step(x.blocks.width))
			setOut(t, sumsOf(sums, i, t.Tiles), rows)
			if x.blocks.width == blockdot.UnitRows {
				t.Count, t.Config = rows, &x.blocks.config
				p.blocks.Unit(t)
			} else {
				p.blocks.Panels[rows](t)
			}
		}
	}
}

// copySums copies the results of a pack's rows to the columns of some tiles, the last of which may be
// not full.
func (p *quantProduct) copySums(out quantOutput, x *quantPack, sums *float32, from, tiles int) {
	at := from * tensor.TileRows
	n := min(tiles*tensor.TileRows, p.n-at)
	for j := x.first; j < x.last; j++ {
		to := shift(rowAt(out.base, out.stride, pick(out.index, out.first, j)), at)
		copy(unsafe.Slice(to, n), unsafe.Slice(rowAt(sums, tiles*tensor.TileRows, j-x.first), n))
	}
}
