package cpu

import (
	"unsafe"

	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/convert"
)

// decodeUnit is the memory of an item of decodeTask on the tile unit, with Options.TileBF16. Keys are BF16 as the cache has them;
// queries, and the exponentials of scores, count with 16 of their 24 bits (package btile). A result has the same bits whatever the other heads
// of the item are.
type decodeUnit struct {
	queries      *float32 // [heads, Rank+Rope], packed
	upper, lower *uint16  // [heads, keyBlock] parts of the exponentials
	rows         *uint16  // [keyBlock, Rank+Rope] copies of keys that are not blocks of the unit where they are
	products     *float32 // of btile
	pairs        *float32
}

// onTiles reports whether the unit is used: the sizes alone decide.
func (t *decodeTask) onTiles() bool {
	return t.dev.tileBF16 && t.bf16 && (t.Rank+t.Rope)%btile.Columns == 0 && t.Rank%btile.WeighColumns == 0
}

// unitRoom is the scratch of a decodeUnit, in float32 values.
func (t *decodeTask) unitRoom() int {
	if !t.tiles {
		return 0
	}
	return btile.MostTokens*(t.Rank+t.Rope) + headBlock*keyBlock + keyBlock*(t.Rank+t.Rope)/2 + btile.Products + btile.Pairs
}

func (t *decodeTask) unit(l *lane) (u decodeUnit) {
	words := func(n int) *uint16 { return (*uint16)(unsafe.Pointer(l.arena.take(n / 2))) }
	u.queries = l.arena.take(btile.MostTokens * (t.Rank + t.Rope))
	u.upper, u.lower, u.rows = words(headBlock*keyBlock), words(headBlock*keyBlock), words(keyBlock*(t.Rank+t.Rope))
	u.products, u.pairs = l.arena.take(btile.Products), l.arena.take(btile.Pairs)
	return u
}

// packQueries packs the queries of an item, which are in packed order.
func (t *decodeTask) packQueries(l *lane, c *decodeScratch) {
	t.dev.btile.Pack(&l.block, c.unit.queries, c.query, c.wide, c.n, t.Rank+t.Rope)
}

// takeOnUnit is take on the unit.
func (t *decodeTask) takeOnUnit(l *lane, c *decodeScratch, keys *keyRows, from, to int) {
	const rows = btile.WeightRows
	u, n := &c.unit, to-from
	whole := (n + rows - 1) / rows * rows
	t.copyRows(c, keys, from, to)
	for pos := from; pos < to; {
		at, count := t.rows(keys, c.span, pos, to)
		count = (count + rows - 1) / rows * rows
		t.dev.btile.Multiply(&l.floats, shift(c.scores, pos-from), keyBlock, u.queries, c.n, t.Rank+t.Rope, at, keys.stride, count/rows, rows*keys.stride, u.products)
		pos += count
	}
	for h := range c.n {
		scores := rowAt(c.scores, keyBlock, h)
		t.fold(&c.state[h], scores, n, rowAt(c.acc, c.wide, h), c.wide)
		clear(unsafe.Slice(scores, whole)[n:])
		t.split(l, u, scores, h, whole)
	}
	half := func(p *uint16, i int) *uint16 { return (*uint16)(unsafe.Add(unsafe.Pointer(p), 2*i)) }
	for pos := from; pos < to; {
		at, count := t.rows(keys, c.span, pos, to)
		count = (count + rows - 1) / rows * rows
		t.dev.btile.Weigh(&l.weigh, c.acc, c.wide, half(u.upper, pos-from), half(u.lower, pos-from), 2*keyBlock, c.n, count, at, keys.stride, t.Rank, u.pairs)
		pos += count
	}
}

// copyRows copies the rows of a block, with zeros up to whole blocks of the unit, unless they are such where they are.
func (t *decodeTask) copyRows(c *decodeScratch, keys *keyRows, from, to int) {
	const rows = btile.WeightRows
	wide, blocks := t.Rank+t.Rope, true
	for pos := from; pos < to && blocks; {
		_, count := t.rows(keys, c.span, pos, to)
		blocks = count%rows == 0
		pos += count
	}
	if blocks {
		return
	}
	all := unsafe.Slice(c.unit.rows, keyBlock*wide)
	for pos := from; pos < to; {
		at, count := t.rows(keys, c.span, pos, to)
		for j := range count {
			copy(all[(pos-from+j)*wide:][:wide], unsafe.Slice((*uint16)(unsafe.Add(at, j*keys.stride)), wide))
		}
		pos += count
	}
	clear(all[(to-from)*wide:])
	*keys = keyRows{wide: unsafe.Pointer(c.unit.rows), from: from, stride: 2 * wide}
}

// split cuts n exponentials of head h in two parts.
func (t *decodeTask) split(l *lane, u *decodeUnit, p *float32, h, n int) {
	upper := (*uint16)(unsafe.Add(unsafe.Pointer(u.upper), 2*keyBlock*h))
	lower := (*uint16)(unsafe.Add(unsafe.Pointer(u.lower), 2*keyBlock*h))
	t.dev.convert.Narrow(upper, p, n)
	t.dev.convert.Widen(u.pairs, upper, n)
	l.axpy.P[0], l.axpy.Acc[0] = &minusOne, p
	l.axpy.W, l.axpy.Stride, l.axpy.N, l.axpy.Width = unsafe.Pointer(u.pairs), 0, 1, n
	t.dev.axpy.F32[1](&l.axpy)
	t.dev.convert.Narrow(lower, p, n)
}

var minusOne float32 = -1

// fromUnit brings Rank weighted latents into natural order.
func (t *decodeTask) fromUnit(dst, acc *float32) {
	to, from := unsafe.Slice(dst, t.Rank), unsafe.Slice(acc, t.Rank)
	for i := range to {
		to[i] = from[btile.Place(i)]
	}
}

// The unit takes whole steps of the packed order.
var _ = [1]struct{}{}[convert.Block-btile.Columns]
