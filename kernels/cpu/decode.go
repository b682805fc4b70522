package cpu

import (
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

// headBlock is the number of heads that read a key block together.
const headBlock = 16

// decodeTask is MLA in the absorbed form (DeepSeek-V2, section 2.1.3): the key half of kv_b is
// folded into the query, attention runs over the latents themselves, the value half of kv_b is
// applied to the result. An item is one row with some heads, and with all keys or those of a stretch.
type decodeTask struct {
	mla
	sparse
	list  []decodeRow
	items []decodeItem
	heads int  // heads per item
	apart bool // stretches are items
	kept  stretchResults
	parts []decodePart // of each row and group of heads
	whole decodeWhole
	tiles bool // scores and weighted latents are products of the tile unit
}

// decodeRow is a row of the batch and its span.
type decodeRow struct{ span, row int }

// decodeItem is the heads [first, first+n) of a row of the list, with the keys [from, to).
type decodeItem struct {
	row, first, n int
	from, to      int
	kept          int // where results are kept to be joined; -1: nowhere
}

// decodePart is where the results of the count stretches of some heads are kept, of n heads each; count 0: nowhere.
type decodePart struct{ kept, n, count int }

// MLADecode: out [T, Heads*V], q [T, Heads*(Nope+Rope)] F32 rotated, cache [slots, Rank+Rope] of
// any type, groups of I8 dividing Rank and Rope, kvB [Heads*(Nope+V), Rank] BF16 or F32, or
// integers: see decodequant.go. Row r of a span sees the cached keys 0..Pos+r. Scratch per thread:
// headBlock rows of 5*(Rank+Rope) + keyBlock values, or with a cache of 8 bits Heads such rows, and keyBlock rows of
// Rank+Rope values.
func (d *Device) MLADecode(stream device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, in device.Spans, p device.MLA) {
	const op = "MLADecode"
	d.absorbed(op, d.stream(op, stream), &out, &q, &cache, &kvB, in.List, &p)
}

// absorbed is MLA of spans in the absorbed form, sparse if s.decode.chosen is set.
func (d *Device) absorbed(op string, s *Stream, out, q *device.Mat, cache *device.KV, kvB *device.KVB, spans []device.Span, p *device.MLA) {
	t := &s.decode
	t.mla.check(op, d, out, q, cache, kvB, spans, p)
	t.sparse.check(op, spans)
	t.list = t.list[:0]
	keys := 0
	for i := range spans {
		for r := range spans[i].Len {
			t.list = append(t.list, decodeRow{span: i, row: r})
			keys += t.sees(len(t.list) - 1)
		}
	}
	flops := 2*keys*p.Heads*(2*p.Rank+p.Rope) + 2*len(t.list)*p.Heads*(p.Nope+p.V)*p.Rank
	ns := flops / d.speed.flopsPerNs
	lanes := 1
	if s.shared(ns) {
		lanes = len(s.lanes)
	}
	t.tiles = t.onTiles()
	near := lanes > 1 && t.integer() && keys <= nearKeys && !t.kv.narrow() && t.chosen == nil
	if near {
		t.heads, t.apart = min(headBlock, (p.Heads+2*lanes-1)/(2*lanes)), false
	} else {
		t.cut(lanes)
	}
	t.makeItems()
	t.begin(s)
	wide := convert.Padded(p.Rank + p.Rope)
	scratch := t.heads*(4*wide+keyBlock) + wide + 2*piece(runningSize*t.heads) + t.blockRoom() + t.unitRoom()
	switch {
	case near && t.whole.on:
		rows := len(t.list)
		s.each((*decodeNear)(t), t.groups(), ns, max(scratch, t.stepScratch(t.kq, rows), t.stepScratch(t.vq, rows)))
	case t.whole.on:
		t.each(s, (*decodeAbsorb)(t), t.kq)
		s.each(t, len(t.items), ns, scratch)
		t.each(s, (*decodeExpand)(t), t.vq)
	default:
		s.each(t, len(t.items), ns, scratch)
	}
	t.spans = nil
}

// sees is the number of keys that a row of the list sees.
func (t *decodeTask) sees(row int) int {
	r := t.list[row]
	span := &t.spans[r.span]
	if t.chosen != nil {
		return len(t.sparse.row(span.Row + r.row))
	}
	return span.Pos + r.row + 1
}

// cut chooses the size of items. If there are fewer than lanes, keys are divided too. If there still are, the items become smaller, and
// several read the same keys.
func (t *decodeTask) cut(lanes int) {
	// If keys have to be widened or copied, every item does it again: so there are as few items as possible.
	again := t.kv.narrow() || t.chosen != nil
	t.heads, t.apart = t.Heads, false
	if !again || t.tiles {
		t.heads = min(headBlock, t.Heads)
	}
	least, enough := dot.Rows, 1
	if t.tiles { // a product of few heads takes as long
		least = headBlock
	}
	switch {
	case lanes > 1 && again:
		enough = lanes
	case lanes > 1:
		enough = 2 * lanes
	}
	if t.count() < enough {
		t.apart = true
		t.apart = t.count()*t.heads*convert.Padded(t.Rank+t.Rope) <= keptMost
	}
	for t.heads > least && t.count() < enough {
		t.heads = (t.heads/2 + dot.Rows - 1) &^ (dot.Rows - 1)
	}
}

// makeItems lists the items, row by row.
func (t *decodeTask) makeItems() {
	t.items, t.parts, t.kept.n = t.items[:0], t.parts[:0], 0
	for row := range t.list {
		keys := t.sees(row)
		for first := 0; first < t.Heads; first += t.heads {
			t.add(decodeItem{row: row, first: first, n: min(t.heads, t.Heads-first), to: keys, kept: -1})
		}
	}
}

// add adds some heads of a row, as an item or as one for each stretch of keys.
func (t *decodeTask) add(item decodeItem) {
	count := stretchOf(item.to-1) + 1
	if !t.apart || count < 2 {
		t.items, t.parts = append(t.items, item), append(t.parts, decodePart{})
		return
	}
	t.parts = append(t.parts, decodePart{t.kept.n, item.n, count})
	for x := range count {
		part := item
		part.from, part.to, part.kept = stretchBegin(x), min(item.to, stretchBegin(x+1)), t.kept.n
		t.items = append(t.items, part)
		t.kept.n += item.n
	}
}

// groups is the number of groups of heads.
func (t *decodeTask) groups() int { return (t.Heads + t.heads - 1) / t.heads }

// count returns the number of items of the present size.
func (t *decodeTask) count() int {
	if !t.apart {
		return len(t.list) * t.groups()
	}
	n := 0
	for row := range t.list {
		n += stretchOf(t.sees(row)-1) + 1
	}
	return n * t.groups()
}

// blockRoom is the scratch that a block of keys takes, in float32 values.
func (t *decodeTask) blockRoom() int {
	if t.chosen != nil {
		return t.gathered(t.Rank + t.Rope)
	}
	return t.kv.wideBlock(t.Rank + t.Rope)
}

// decodeScratch is an item being computed and its memory.
type decodeScratch struct {
	decodeItem
	span     *device.Span
	absorbed *float32 // [heads, wide] the query in latent space, natural order
	query    *float32 // [heads, wide] the same as the tiles want it
	acc      *float32 // [heads, wide] weighted latents of the stretch at hand
	total    *float32 // [heads, wide] those of the stretches before
	spare    *float32 // [wide] between orders
	scores   *float32 // [heads, keyBlock]
	block    *float32 // blockRoom
	wide     int
	state    []running
	states   []running // of the stretches before
	chosen   []int32   // the positions that the row sees; nil: all
	unit     decodeUnit
}

func (t *decodeTask) scratch(l *lane, item decodeItem) (c decodeScratch) {
	c.decodeItem, c.span = item, &t.spans[t.list[item.row].span]
	c.wide = convert.Padded(t.Rank + t.Rope)
	l.arena.clear()
	c.absorbed, c.query = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*c.wide)
	c.acc, c.total, c.scores = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*c.wide), l.arena.take(t.heads*keyBlock)
	c.spare = l.arena.take(c.wide)
	if n := t.blockRoom(); n > 0 {
		c.block = l.arena.take(n)
	}
	c.state, c.states = takeRunning(&l.arena, c.n), takeRunning(&l.arena, c.n)
	if c.kept >= 0 {
		c.acc, c.state = t.kept.of(c.kept, c.n)
	}
	if t.tiles {
		c.unit = t.unit(l)
	}
	return c
}

func (t *decodeTask) do(l *lane, i int) {
	c := t.scratch(l, t.items[i])
	row := c.span.Row + t.list[c.row].row
	for j := range c.n {
		if t.whole.on {
			copy(unsafe.Slice(rowAt(c.absorbed, c.wide, j), t.Rank), unsafe.Slice(t.latent(c.row, c.first+j), t.Rank))
		} else {
			t.absorb(l, rowAt(c.absorbed, c.wide, j), c.spare, row, c.first+j)
		}
		t.rotated(&c, t.query(row, c.first+j), j)
	}
	if t.tiles {
		t.packQueries(l, &c)
	}
	c.chosen = t.sparse.row(row)
	first, end := stretchOf(c.from), stretchOf(c.to-1)+1
	for x := first; x < end; x++ {
		clear(c.state)
		clearF32(c.acc, c.n*c.wide)
		for from := max(c.from, stretchBegin(x)); from < min(c.to, stretchBegin(x+1)); from += keyBlock {
			t.take(l, &c, from, min(from+keyBlock, c.to))
		}
		switch {
		case c.kept >= 0:
			return
		case x == first:
			c.acc, c.total, c.state, c.states = c.total, c.acc, c.states, c.state
		default:
			for j := range c.n {
				t.dev.joinRunning(&c.states[j], &c.state[j], rowAt(c.total, c.wide, j), rowAt(c.acc, c.wide, j), c.wide)
			}
		}
	}
	for j := range c.n {
		acc := rowAt(c.total, c.wide, j)
		t.dev.axpy.Scale(acc, c.wide, 1/c.states[j].sum)
		if t.whole.on {
			t.keep(acc, t.latent(c.row, c.first+j))
			continue
		}
		t.natural(c.spare, acc)
		t.expand(l, c.spare, acc, row, c.first+j)
	}
}

// absorb writes the Rank values of a head's query in latent space to dst, which is padded: q_nope * W_k. spare is as long.
func (t *decodeTask) absorb(l *lane, dst, spare *float32, row, head int) {
	acc := dst
	kernel := t.dev.axpy.F32[1]
	if t.kvBF16 {
		acc, kernel = spare, t.dev.axpy.BF16[1]
	}
	clearF32(acc, convert.Padded(t.Rank))
	l.axpy.P[0], l.axpy.Acc[0] = t.query(row, head), acc
	l.axpy.W, l.axpy.Stride = t.keyWeights(head), t.kvRow
	l.axpy.N, l.axpy.Width = t.Nope, t.Rank
	kernel(&l.axpy)
	if t.kvBF16 {
		t.dev.convert.Unpack(dst, acc, t.Rank)
	}
}

// rotated completes the query of a head whose part of Rank values is computed.
func (t *decodeTask) rotated(c *decodeScratch, q *float32, j int) {
	dst := rowAt(c.absorbed, c.wide, j)
	if t.Rope > 0 { // otherwise there is nothing after the query to point at
		copy(unsafe.Slice(shift(dst, t.Rank), t.Rope), unsafe.Slice(shift(q, t.Nope), t.Rope))
	}
	if t.bf16 {
		t.dev.convert.Pack(rowAt(c.query, c.wide, j), dst, t.Rank+t.Rope)
	} else {
		copy(unsafe.Slice(rowAt(c.query, c.wide, j), t.Rank+t.Rope), unsafe.Slice(dst, t.Rank+t.Rope))
	}
}

// block is a block of keys as the tiles read them.
func (t *decodeTask) block(c *decodeScratch, from, to int) keyRows {
	if c.chosen == nil {
		return t.keys(c.span, from, to, 0, t.Rank+t.Rope, c.block)
	}
	keys := t.gather(c.span, c.chosen[from:to], 0, t.Rank+t.Rope, c.block)
	keys.from = from
	return keys
}

// take takes one block of keys into the running softmax of all heads: positions [from, to), or the chosen ones
// of these numbers.
func (t *decodeTask) take(l *lane, c *decodeScratch, from, to int) {
	span, heads := c.span, c.n
	scoreKernels, sumKernels := t.dev.tiles(t.bf16), &t.dev.axpy.F32
	if t.bf16 {
		sumKernels = &t.dev.axpy.BF16
	}
	keys := t.block(c, from, to)
	if t.tiles {
		t.takeOnUnit(l, c, &keys, from, to)
		return
	}
	l.dot.Stride, l.dot.K = keys.stride, t.Rank+t.Rope
	for pos := from; pos < to; {
		rows, n := t.rows(&keys, span, pos, to)
		l.dot.W, l.dot.N = rows, n
		for h := 0; h < heads; h += dot.Rows {
			group := min(dot.Rows, heads-h)
			for j := range group {
				l.dot.X[j] = rowAt(c.query, c.wide, h+j)
				l.dot.Out[j] = shift(rowAt(c.scores, keyBlock, h+j), pos-from)
			}
			scoreKernels[group](&l.dot)
		}
		pos += n
	}
	for h := range heads {
		t.fold(&c.state[h], rowAt(c.scores, keyBlock, h), to-from, rowAt(c.acc, c.wide, h), c.wide)
	}
	l.axpy.Stride, l.axpy.Width = keys.stride, t.Rank
	for pos := from; pos < to; {
		rows, n := t.rows(&keys, span, pos, to)
		l.axpy.W, l.axpy.N = rows, n
		for h := 0; h < heads; h += axpy.Rows {
			group := min(axpy.Rows, heads-h)
			for j := range group {
				l.axpy.P[j] = shift(rowAt(c.scores, keyBlock, h+j), pos-from)
				l.axpy.Acc[j] = rowAt(c.acc, c.wide, h+j)
			}
			sumKernels[group](&l.axpy)
		}
		pos += n
	}
}

// natural writes the Rank weighted latents that the tiles left in acc to dst, in natural order.
func (t *decodeTask) natural(dst, acc *float32) {
	switch {
	case t.tiles:
		t.fromUnit(dst, acc)
	case t.bf16:
		t.dev.convert.Unpack(dst, acc, t.Rank)
	default:
		copy(unsafe.Slice(dst, t.Rank), unsafe.Slice(acc, t.Rank))
	}
}

// expand applies the value half of kv_b to the weighted latents of one head, in natural order. spare is as long, padded.
func (t *decodeTask) expand(l *lane, acc, spare *float32, row, head int) {
	if t.kvBF16 {
		t.dev.convert.Pack(spare, acc, t.Rank)
		acc = spare
	}
	l.dot.X[0], l.dot.Out[0] = acc, t.result(row, head)
	l.dot.W, l.dot.Stride = t.valueWeights(head), t.kvRow
	l.dot.K, l.dot.N = t.Rank, t.V
	t.dev.tiles(t.kvBF16)[1](&l.dot)
}
