package cpu

// ffnUnit is a network with BF16 weights on the tile unit (Options.TileBF16). It runs the products
// of MatMul one after the other, since each packs its rows for the unit. As in MatMul, only the
// weights decide whether the unit is used, never the number of rows.
type ffnUnit struct {
	dev      *Device
	room     arena
	gate, up *float32 // [rows, f]
	f        int
	extra    *extra
	rows     rowChunks
}

// do computes the middle values of an item of rows.
func (t *ffnUnit) do(_ *lane, i int) {
	for r, to := t.rows.of(i); r < to; r++ {
		g := rowAt(t.gate, t.f, r)
		t.extra.middle(t.dev, g, g, rowAt(t.up, t.f, r), 0, t.f)
	}
}

// run computes out, the network's result for rows of x. Strides are in values. Scratch: rowBlock
// rows of 2*F values, besides MatMul's.
func (t *ffnUnit) run(s *Stream, e *ffnItem, out *float32, outStride int, x *float32, xStride, rows int) {
	t.dev, t.f, t.extra = s.dev, e.gate.n, &e.extra
	t.room.held, t.room.alloc = s.arena.held, s.arena.alloc
	t.room.reset(2 * piece(rowBlock*t.f))
	t.gate, t.up = t.room.take(rowBlock*t.f), t.room.take(rowBlock*t.f)
	for r := 0; r < rows; r += rowBlock {
		n := min(rowBlock, rows-r)
		from := rowAt(x, xStride, r)
		s.multiply(e.gate, t.gate, t.f, from, xStride, n)
		s.multiply(e.up, t.up, t.f, from, xStride, n)
		t.rows = rowChunks{n}
		const valuesPerNs = 2
		s.each(t, t.rows.count(), n*t.f/valuesPerNs, 0)
		s.multiply(e.down, rowAt(out, outStride, r), outStride, t.gate, t.f, n)
		for j := range n {
			e.finish(s.dev, rowAt(out, outStride, r+j), 0, e.down.n)
		}
	}
}
