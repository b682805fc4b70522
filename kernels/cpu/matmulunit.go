package cpu

import (
	"unsafe"

	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/convert"
)

// unitPack is the rows of a MatMul packed for the tile unit, in blocks of btile.MostTokens; tokens
// is nil when the unit has no part in the product.
//
// The matrix alone decides whether the unit is used, and for which columns: all but the last N %
// 32. So results do not depend on the number of rows.
type unitPack struct {
	arena  arena
	tokens *float32
	task   *matmulTask
}

// onTiles reports whether the unit is used for products with these weights.
func (p *product) onTiles(d *Device) bool { return d.tileBF16 && p.bf16 && btile.Can(p.n, p.k) }

// pack packs the rows of t if Options.TileBF16 asks for the unit, and returns the scratch that an
// item of t takes of its lane's arena.
func (u *unitPack) pack(s *Stream, t *matmulTask) int {
	u.tokens = nil
	if !t.onTiles(s.dev) {
		return 0
	}
	blocks := (t.m + btile.MostTokens - 1) / btile.MostTokens
	u.task, u.arena.held, u.arena.alloc = t, s.arena.held, s.arena.alloc
	u.arena.reset(blocks * btile.MostTokens * t.k)
	u.tokens = u.arena.take(blocks * btile.MostTokens * t.k)
	const valuesPerNs = 3
	s.each(u, blocks, t.m*t.k/valuesPerNs, 0)
	return btile.Products
}

// do packs block b.
func (u *unitPack) do(l *lane, b int) {
	t := u.task
	t.dev.btile.Pack(&l.block, u.place(b), rowAt(t.x, t.xStride, b*btile.MostTokens), t.xStride, u.count(b), t.k)
}

// place returns the position of block b.
func (u *unitPack) place(b int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(u.tokens), 4*b*btile.MostTokens*u.task.k))
}

// count returns the rows of block b.
func (u *unitPack) count(b int) int {
	return min(btile.MostTokens, u.task.m-b*btile.MostTokens)
}

// onUnit is do for the unit's columns of [from, end), step weight rows at a time. It returns the
// first column that it did not compute.
func (t *matmulTask) onUnit(l *lane, from, end, step int) int {
	const rows = btile.WeightRows
	end = from + max(0, min(end, t.n/rows*rows)-from)/rows*rows
	step = max(rows, step/rows*rows)
	l.arena.clear()
	scratch := l.arena.take(btile.Products)
	for at := from; at < end; at += step {
		blocks := min(step, end-at) / rows
		for b := 0; b*btile.MostTokens < t.m; b++ {
			out := (*float32)(unsafe.Add(unsafe.Pointer(t.out), 4*(b*btile.MostTokens*t.outStride+at)))
			t.dev.btile.Multiply(&l.floats, out, t.outStride, t.unit.place(b), t.unit.count(b), t.k, unsafe.Add(t.w, at*t.stride), t.stride, blocks, btile.Ahead, scratch)
		}
	}
	return end
}

// The unit takes whole blocks of the packed order, so items are cut at block borders.
var _ = [1]struct{}{}[convert.Block-btile.Columns]
