package cpu

import (
	"unsafe"

	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/convert"
	"krater/kernels/device"
)

const (
	// unitKeys is the number of keys that are expanded before rows meet them: they stay in the second-level cache while all rows
	// of an item pass.
	unitKeys = 8 * keyBlock
	// unitSpan is the least number of rows of a span that is cut, so that there are items for all threads: each expands its keys again.
	unitSpan = 16 * btile.MostTokens
)

// prefillUnit is an item of prefillTask on the tile unit, with Options.TileBF16, and its memory: btile.MostTokens query rows meet a
// block of keys at a time.
//
// Keys and values are products of kv_b, in two parts of BF16, and latents as the cache has them; then they are rounded to BF16.
// Queries, and the exponentials of scores, count with 16 of their 24 bits (package btile). A row adds the weighted values of a block
// to those of the blocks before. Blocks are at absolute positions, and what a row does not see has the factor
// zero, so neither the other rows of a call nor the cut of the prompt change a bit.
type prefillUnit struct {
	*lane
	queries  *float32  // packed, MostTokens rows after another
	weights  *float32  // the head's rows of kv_b, packed likewise, those of keys first
	latents  *uint16   // [keyBlock, Rank]
	wide     *float32  // wideBlock
	keys     *uint16   // [unitKeys, Nope+Rope]
	values   *uint16   // [V, keyBlock] for each block of unitKeys
	ordered  *float32  // [MostTokens, the longest row] in packed order
	scores   *float32  // [MostTokens, keyBlock]; also keys and values while they are expanded
	packed   *float32  // [MostTokens, keyBlock] exponentials, packed
	sums     *float32  // [MostTokens, V] weighted values of a block
	acc      *float32  // [rows, V] those of all blocks: rows of the output lie too far apart for a cache
	products *float32  // of btile
	halves   *uint16   // [2, keyBlock]
	state    []running // of the rows
}

// onTiles reports whether the unit is used: the sizes alone decide, never the number of rows.
func (t *prefillTask) onTiles() bool {
	return t.dev.tileBF16 && t.bf16 && t.Nope%2 == 0 && (t.Nope+t.Rope)%btile.Columns == 0 && t.V%btile.WeightRows == 0 && t.Rank%btile.Columns == 0
}

// packs is the number of packs of rows rows.
func packs(rows int) int { return (rows + btile.MostTokens - 1) / btile.MostTokens }

// longestRow is the values of the longest row that is packed.
func (t *prefillTask) longestRow() int { return max(t.Nope+t.Rope, keyBlock, t.Rank) }

// unitRoom is the scratch of a prefillUnit for rows rows, in float32 values.
func (t *prefillTask) unitRoom(rows int) int {
	const most = btile.MostTokens
	qk := t.Nope + t.Rope
	return packs(rows)*most*qk + (packs(t.Nope)+packs(t.V))*most*t.Rank + keyBlock*t.Rank/2 + piece(t.kv.wideBlock(t.Rank+t.Rope)) +
		unitKeys*(qk+t.V)/2 + most*t.longestRow() + 2*most*keyBlock + most*t.V + btile.Products + keyBlock + rows*t.V + piece(runningSize*rows) + t.wideWeights()
}

// cutSpans cuts spans with few heads, so that all threads have items. Later rows see more keys and come first.
func (t *prefillTask) cutSpans(lanes int) {
	rows := 0
	for i := range t.spans {
		rows += t.spans[i].Len
	}
	most := max(unitSpan, (rows*t.Heads/(2*lanes)+btile.MostTokens-1)/btile.MostTokens*btile.MostTokens)
	t.pieces = t.pieces[:0]
	for _, span := range t.spans {
		for end := span.Len; end > 0; {
			piece := span
			first := (end - 1) / most * most
			piece.Row, piece.Pos, piece.Len = span.Row+first, span.Pos+first, end-first
			t.pieces = append(t.pieces, piece)
			end = first
		}
	}
	t.spans = t.pieces
}

// unit takes the memory of an item, and packs the head's weights and queries.
func (t *prefillTask) unit(l *lane, span *device.Span, head int) (u prefillUnit) {
	const most = btile.MostTokens
	qk := t.Nope + t.Rope
	words := func(n int) *uint16 { return (*uint16)(unsafe.Pointer(l.arena.take(n / 2))) }
	l.arena.clear()
	u.lane = l
	u.queries, u.weights = l.arena.take(packs(span.Len)*most*qk), l.arena.take((packs(t.Nope)+packs(t.V))*most*t.Rank)
	u.latents, u.keys, u.values = words(keyBlock*t.Rank), words(unitKeys*qk), words(unitKeys*t.V)
	if n := t.kv.wideBlock(t.Rank + t.Rope); n > 0 {
		u.wide = l.arena.take(n)
	}
	u.ordered, u.scores, u.packed = l.arena.take(most*t.longestRow()), l.arena.take(most*keyBlock), l.arena.take(most*keyBlock)
	u.sums, u.products = l.arena.take(most*t.V), l.arena.take(btile.Products)
	u.halves, u.acc = words(2*keyBlock), l.arena.take(span.Len*t.V)
	clearF32(u.acc, span.Len*t.V)
	u.state = takeRunning(&l.arena, span.Len)
	clear(u.state)
	var wide wideHead
	if t.integer() {
		wide = t.widenHead(l, head)
	}
	u.pack(t.dev, u.queries, span.Len, qk, func(i int, to *float32) { t.dev.convert.Pack(to, t.query(span.Row+i, head), qk) })
	u.pack(t.dev, u.weights, t.Nope, t.Rank, func(i int, to *float32) { t.weightRow(to, &wide, t.keyWeights(head), wide.keys, wide.keyRow, i) })
	u.pack(t.dev, u.valueWeights(&t.mla), t.V, t.Rank, func(i int, to *float32) { t.weightRow(to, &wide, t.valueWeights(head), wide.values, 0, i) })
	return u
}

// valueWeights is the part of weights for values.
func (u *prefillUnit) valueWeights(t *mla) *float32 {
	return rowAt(u.weights, btile.MostTokens*t.Rank, packs(t.Nope))
}

// pack packs n rows of k values; row writes one in packed order.
func (u *prefillUnit) pack(d *Device, to *float32, n, k int, row func(i int, to *float32)) {
	for first := 0; first < n; first += btile.MostTokens {
		rows := min(btile.MostTokens, n-first)
		for i := range rows {
			row(first+i, rowAt(u.ordered, k, i))
		}
		d.btile.Pack(&u.block, rowAt(to, k, first), u.ordered, k, rows, k)
	}
}

// weightRow writes row i of a half of kv_b in packed order: of floats, of widened integers with their stride, or of those of
// values, whose rows are columns.
func (t *prefillTask) weightRow(to *float32, w *wideHead, floats unsafe.Pointer, wide *float32, stride, i int) {
	switch {
	case !t.integer() && t.kvBF16:
		t.dev.convert.WidenPack(to, (*uint16)(unsafe.Add(floats, i*t.kvRow)), t.Rank)
	case !t.integer():
		t.dev.convert.Pack(to, (*float32)(unsafe.Add(floats, i*t.kvRow)), t.Rank)
	case stride > 0:
		t.dev.convert.Pack(to, rowAt(wide, stride, i), t.Rank)
	default:
		for k := range t.Rank {
			const half = convert.Block / 2
			*shift(to, k&^(convert.Block-1)+k%2*half+k%convert.Block/2) = *shift(rowAt(wide, w.valueRow, k), i)
		}
	}
}

// doOnUnit computes a head of a span.
func (t *prefillTask) doOnUnit(l *lane, span *device.Span, head int) {
	const most = btile.MostTokens
	u := t.unit(l, span, head)
	keys := span.Pos + span.Len
	for from := 0; from < keys; from += unitKeys {
		to := min(from+unitKeys, keys)
		for at := from; at < to; at += keyBlock {
			t.expandOnUnit(&u, span, at, min(at+keyBlock, to), at-from)
		}
		for r := max(0, from-span.Pos) / most * most; r < span.Len; r += most {
			n := min(most, span.Len-r)
			last := min(to, span.Pos+r+n) // no row sees further
			for at := from; at < last; at += keyBlock {
				t.rowsOnUnit(&u, span, r, n, at, min(at+keyBlock, last), at-from)
			}
		}
	}
	for r := range span.Len {
		acc := rowAt(u.acc, t.V, r)
		t.dev.axpy.Scale(acc, t.V, 1/u.state[r].sum)
		copy(unsafe.Slice(t.result(span.Row+r, head), t.V), unsafe.Slice(acc, t.V))
	}
}

// expandOnUnit makes keys and values of positions [from, to), a block, the at-th of those at hand; what is missing of it is zero.
func (t *prefillTask) expandOnUnit(u *prefillUnit, span *device.Span, from, to, at int) {
	qk, n := t.Nope+t.Rope, to-from
	keys := unsafe.Slice(u.keys, unitKeys*qk)[at*qk:][:keyBlock*qk]
	rows := t.keys(span, from, to, 0, t.Rank+t.Rope, u.wide)
	whole := n == keyBlock
	for pos := from; pos < to; {
		p, count := t.paged.rows(&rows, span, pos, to)
		for j := range count {
			copy(keys[(pos-from+j)*qk+t.Nope:], unsafe.Slice((*uint16)(unsafe.Add(p, j*rows.stride)), t.Rank+t.Rope)[t.Rank:])
		}
		whole = whole && count%btile.WeightRows == 0
		pos += count
	}
	clear(keys[n*qk:])
	if !whole {
		t.copyLatents(u, &rows, span, from, to)
		to = from + keyBlock
	}
	for i := 0; i < t.Nope; i += btile.MostTokens {
		n := min(btile.MostTokens, t.Nope-i)
		t.expandRows(u, &rows, span, rowAt(u.weights, t.Rank, i), n, from, to)
		t.turn(u, keys[i:], n, qk)
	}
	values := unsafe.Slice(u.values, unitKeys*t.V)[at*t.V:]
	for i := 0; i < t.V; i += btile.MostTokens {
		t.expandRows(u, &rows, span, rowAt(u.valueWeights(&t.mla), t.Rank, i), btile.MostTokens, from, to)
		t.dev.convert.Narrow(&values[i*keyBlock], u.scores, btile.MostTokens*keyBlock)
	}
}

// copyLatents copies the latents of a block that is not whole blocks of the unit where it is, and fills up with zeros.
func (t *prefillTask) copyLatents(u *prefillUnit, rows *keyRows, span *device.Span, from, to int) {
	latents := unsafe.Slice(u.latents, keyBlock*t.Rank)
	for pos := from; pos < to; {
		p, count := t.paged.rows(rows, span, pos, to)
		for j := range count {
			copy(latents[(pos-from+j)*t.Rank:], unsafe.Slice((*uint16)(unsafe.Add(p, j*rows.stride)), t.Rank))
		}
		pos += count
	}
	clear(latents[(to-from)*t.Rank:])
	*rows = keyRows{wide: unsafe.Pointer(u.latents), from: from, stride: 2 * t.Rank}
}

// expandRows multiplies packed weights of n rows by the latents of positions [from, to): scores [n, keyBlock].
func (t *prefillTask) expandRows(u *prefillUnit, rows *keyRows, span *device.Span, weights *float32, n, from, to int) {
	for pos := from; pos < to; {
		p, count := t.paged.rows(rows, span, pos, to)
		t.dev.btile.Multiply(&u.floats, shift(u.scores, pos-from), keyBlock, weights, n, t.Rank, p, rows.stride, count/btile.WeightRows, 0, u.products)
		pos += count
	}
}

// turn writes n rows of scores, an even number, as columns of keys, rounded to BF16.
func (t *prefillTask) turn(u *prefillUnit, keys []uint16, n, stride int) {
	halves := unsafe.Slice(u.halves, 2*keyBlock)
	even, odd := halves[:keyBlock], halves[keyBlock:]
	for i := 0; i < n; i += 2 {
		t.dev.convert.Narrow(&even[0], rowAt(u.scores, keyBlock, i), keyBlock)
		t.dev.convert.Narrow(&odd[0], rowAt(u.scores, keyBlock, i+1), keyBlock)
		at := unsafe.Pointer(&keys[i])
		for j, v := range even {
			*(*uint32)(at) = uint32(v) | uint32(odd[j])<<16
			at = unsafe.Add(at, 2*stride)
		}
	}
}

// rowsOnUnit takes the keys of [from, to), in a block, the at-th of those at hand, into the softmax of query rows [r, r+n), which are packed together.
func (t *prefillTask) rowsOnUnit(u *prefillUnit, span *device.Span, r, n, from, to, at int) {
	qk := t.Nope + t.Rope
	blocks := (to - from + btile.WeightRows - 1) / btile.WeightRows
	keys, values := unsafe.Add(unsafe.Pointer(u.keys), 2*at*qk), unsafe.Add(unsafe.Pointer(u.values), 2*at*t.V)
	t.dev.btile.Multiply(&u.floats, u.scores, keyBlock, rowAt(u.queries, qk, r), n, qk, keys, 2*qk, blocks, 0, u.products)
	for i := range n {
		scores := rowAt(u.scores, keyBlock, i)
		visible := max(0, min(to, span.Pos+r+i+1)-from)
		if visible > 0 {
			t.fold(&u.state[r+i], scores, visible, rowAt(u.acc, t.V, r+i), t.V)
		}
		clear(unsafe.Slice(scores, keyBlock)[visible:])
		t.dev.convert.Pack(rowAt(u.ordered, keyBlock, i), scores, keyBlock)
	}
	t.dev.btile.Pack(&u.block, u.packed, u.ordered, keyBlock, n, keyBlock)
	t.dev.btile.Multiply(&u.floats, u.sums, t.V, u.packed, n, keyBlock, values, 2*keyBlock, t.V/btile.WeightRows, 0, u.products)
	for i := range n {
		if span.Pos+r+i >= from {
			t.dev.axpy.Add(rowAt(u.acc, t.V, r+i), rowAt(u.sums, t.V, i), t.V)
		}
	}
}

// A block of keys is a whole number of steps and of blocks of the unit.
var _ = [1]struct{}{}[keyBlock%btile.WeightRows+keyBlock%convert.Block]
