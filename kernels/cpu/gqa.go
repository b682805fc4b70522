package cpu

import (
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// queryBlock is the number of queries that share a key block while it is in the first-level cache.
const queryBlock = 64

// gqaTask is grouped-query attention. The queries of a span that share a key head are counted row
// by row: query i is head i%group of row i/group. An item is a stretch of them: a decoded row's
// whole group, so that its keys are read once, or several rows of a prompt. Keys and values are
// used as they lie in the cache, by the same tiles either way, so a row has the same bits whether
// it was part of a prompt or decoded.
type gqaTask struct {
	device.GQA
	paged
	out, q    *float32
	outStride int // values
	qStride   int
	group     int // query heads of a key head
	queries   int // of an item, at most
	wide      int // values between rows of scratch
	items     []gqaItem
	apart     bool // stretches are items
	kept      stretchResults
	joins     []gqaJoin
	sinks     unsafe.Pointer // [Heads]; nil: none
	sinksBF16 bool
	lists     gqaLists
}

// gqaItem is the queries [first, first+n) of a span and key head, with all keys, or with those of a stretch.
type gqaItem struct {
	span, head, first, n int
	from, to             int // keys
	kept                 int // where results are kept to be joined; -1: nowhere
}

// gqaJoin is the queries of a span and key head whose results of count stretches are kept.
type gqaJoin struct {
	gqaItem
	count int
}

// GQA: out and q [T, Heads*HeadDim] F32, q rotated, cache [slots, Width] of any
// type, groups of I8 dividing HeadDim, each row the keys of all key heads, then
// their values. Row r of a span sees the cached keys 0..Pos+r, with a window the last of them. sinks [1, Heads]
// BF16 or F32, or absent. Scratch per thread:
// queryBlock rows of 2*HeadDim values, four of keyBlock, and keyBlock rows of
// 2*HeadDim when the cache is of 8 bits.
func (d *Device) GQA(stream device.Stream, out, q device.Mat, cache device.KV, sinks device.Mat, in device.Spans, p device.GQA) {
	const op = "GQA"
	s := d.stream(op, stream)
	t := &s.gqa
	t.check(op, d, &out, &q, &cache, in.List, &p)
	if t.sinks = nil; !sinks.Zero() {
		t.sinks, t.sinksBF16 = weight(op, "sinks", &sinks, 1, p.Heads)
	}
	pairs, keys := 0, 0 // of queries and keys, keys read
	for i := range t.spans {
		span := &t.spans[i]
		keys += span.Pos + span.Len
		pairs += span.Len*span.Pos + span.Len*(span.Len+1)/2
	}
	t.run(s, pairs, keys)
}

// check checks the arguments, but for sinks.
func (t *gqaTask) check(op string, d *Device, out, q *device.Mat, cache *device.KV, spans []device.Span, p *device.GQA) {
	if p.KVHeads < 1 || p.Heads < p.KVHeads || p.Heads%p.KVHeads != 0 || p.HeadDim < 1 || p.BlockTokens < 1 || p.Window < 0 {
		fail(op, "sizes %+v", *p)
	}
	t.GQA, t.block, t.scale = *p, p.BlockTokens, p.Scale
	t.out = f32(op, "out", out, q.Rows, p.Heads*p.HeadDim)
	t.q = f32(op, "q", q, q.Rows, p.Heads*p.HeadDim)
	t.outStride, t.qStride = out.Stride, q.Stride
	t.bind(op, d, cache, newKVCache(op, cache, p.Width(), p.HeadDim), spans, q.Rows)
	t.group, t.wide = p.Heads/p.KVHeads, convert.Padded(p.HeadDim)
}

// run runs the task over pairs of queries and keys, of which keys are read.
func (t *gqaTask) run(s *Stream, pairs, keys int) {
	ns := max(4*pairs*t.Heads*t.HeadDim/t.dev.speed.flopsPerNs, keys*t.kv.rowBytes/t.dev.speed.bytesPerNs)
	lanes := 1
	if s.shared(ns) {
		lanes = len(s.lanes)
	}
	t.cut(lanes)
	if t.apart {
		s.arena.reset(t.kept.room(t.wide))
		t.kept.take(&s.arena, t.wide)
	}
	scratch := 3*t.queries*t.wide + dot.Rows*keyBlock + 2*piece(runningSize*t.queries) + 2*t.blockRoom()
	s.each(t, len(t.items), ns, scratch)
	if t.apart {
		s.each((*gqaJoining)(t), len(t.joins), t.kept.n*t.wide/joinedPerNs, 0)
	}
	t.spans = nil
}

// cut makes the items. If there are fewer than lanes, keys are divided too. If there still are, the items become smaller, and
// several read the same keys.
func (t *gqaTask) cut(lanes int) {
	longest := 0
	for i := range t.spans {
		longest = max(longest, t.spans[i].Len)
	}
	t.queries, t.apart = min(queryBlock, longest*t.group), false
	if lanes > 1 && t.count() < 2*lanes {
		t.apart = true
		t.apart = t.count()*t.queries*t.wide <= keptMost
	}
	for t.queries > dot.Rows && t.count() < lanes {
		t.queries = (t.queries/2 + dot.Rows - 1) &^ (dot.Rows - 1)
	}
	t.items, t.joins, t.kept.n = t.items[:0], t.joins[:0], 0
	for i := range t.spans {
		all := t.spans[i].Len * t.group
		for head, end := t.heads(i); head < end; head++ {
			for first := 0; first < all; first += t.queries {
				t.add(gqaItem{span: i, head: head, first: first, n: min(t.queries, all-first), kept: -1})
			}
		}
	}
}

// add adds some queries, as an item or as one for each stretch of keys.
func (t *gqaTask) add(item gqaItem) {
	c := gqaWork{gqaItem: item, seq: &t.spans[item.span]}
	item.from, item.to = t.first(&c, 0), t.sees(&c, item.n-1)
	first, end := stretchOf(item.from), stretchOf(item.to-1)+1
	if !t.apart || end-first < 2 {
		t.items = append(t.items, item)
		return
	}
	item.kept = t.kept.n
	t.joins = append(t.joins, gqaJoin{item, end - first})
	for x := first; x < end; x++ {
		part := item
		part.from, part.to, part.kept = max(item.from, stretchBegin(x)), min(item.to, stretchBegin(x+1)), t.kept.n
		t.items = append(t.items, part)
		t.kept.n += item.n
	}
}

// count returns the number of items of the present size.
func (t *gqaTask) count() int {
	n := 0
	for i := range t.spans {
		sp, parts := &t.spans[i], 1
		first, end := t.heads(i)
		if t.apart {
			parts = stretchOf(sp.Pos+sp.Len-1) - stretchOf(t.First(sp.Pos)) + 1
		}
		n += (end - first) * ((sp.Len*t.group + t.queries - 1) / t.queries) * parts
	}
	return n
}

// heads are the key heads [first, end) that are computed of a span: those of its list, or all.
func (t *gqaTask) heads(span int) (first, end int) {
	if !t.lists.on {
		return 0, t.KVHeads
	}
	n := t.KVHeads / t.lists.count
	return t.lists.of[span] * n, (t.lists.of[span] + 1) * n
}

// gqaWork is an item being computed and its memory.
type gqaWork struct {
	gqaItem
	seq    *device.Span
	query  *float32 // [n, wide] as BF16 tiles want it; unused with F32
	acc    *float32 // [n, wide] weighted values of the stretch at hand
	scores *float32 // [dot.Rows, keyBlock]
	state  []running
	total  *float32 // [n, wide] weighted values of the stretches before
	states []running

	keyScratch, valueScratch *float32 // blockRoom
	keys, values             keyRows  // of the current block
}

func (t *gqaTask) work(l *lane, item gqaItem) (c gqaWork) {
	c.gqaItem, c.seq = item, &t.spans[item.span]
	n := item.n
	l.arena.clear()
	c.query, c.acc, c.total = l.arena.take(n*t.wide), l.arena.take(n*t.wide), l.arena.take(n*t.wide)
	c.scores = l.arena.take(dot.Rows * keyBlock)
	c.state, c.states = takeRunning(&l.arena, n), takeRunning(&l.arena, n)
	if n := t.blockRoom(); n > 0 {
		c.keyScratch, c.valueScratch = l.arena.take(n), l.arena.take(n)
	}
	if c.kept >= 0 {
		c.acc, c.state = t.kept.of(c.kept, n)
	}
	return c
}

// begin begins the stretch from position from on.
func (t *gqaTask) begin(c *gqaWork, from int) {
	clear(c.state)
	clearF32(c.acc, c.n*t.wide)
	if t.sinks == nil {
		return
	}
	for j := range c.state {
		if stretchOf(t.first(c, j)) == stretchOf(from) { // a key before all others, whose value is zero
			c.state[j].top, c.state[j].sum = t.sink(c.head*t.group+(c.first+j)%t.group), 1
		}
	}
}

// sink is the score of a head's sink.
func (t *gqaTask) sink(head int) float32 {
	if t.sinksBF16 {
		return tensor.BF16ToF32(*(*uint16)(unsafe.Add(t.sinks, 2*head)))
	}
	return *(*float32)(unsafe.Add(t.sinks, 4*head))
}

func (t *gqaTask) do(l *lane, i int) {
	c := t.work(l, t.items[i])
	if t.bf16 {
		for j := range c.n {
			t.dev.convert.Pack(rowAt(c.query, t.wide, j), t.query(&c, j), t.HeadDim)
		}
	}
	first := stretchOf(c.from)
	end := stretchOf(c.to-1) + 1
	t.fetch(&c, c.from, min(c.to, c.from+keyBlock))
	for x := first; x < end; x++ {
		t.stretch(l, &c, max(c.from, stretchBegin(x)), min(c.to, stretchBegin(x+1)))
		switch {
		case c.kept >= 0:
			return
		case x == first:
			c.acc, c.total, c.state, c.states = c.total, c.acc, c.states, c.state
		default:
			for j := range c.n {
				t.dev.joinRunning(&c.states[j], &c.state[j], rowAt(c.total, t.wide, j), rowAt(c.acc, t.wide, j), t.wide)
			}
		}
	}
	for j := range c.n {
		t.finish(&c, j, &c.states[j], rowAt(c.total, t.wide, j))
	}
}

// stretch takes the keys of [from, to), of one stretch.
func (t *gqaTask) stretch(l *lane, c *gqaWork, from, to int) {
	t.begin(c, from)
	for at := from / keyBlock * keyBlock; at < to; at += keyBlock {
		end := min(at+keyBlock, to)
		t.read(c, max(at, from), end) // what no query sees may not be there
		t.fetch(c, end, min(end+keyBlock, c.to))
		// Rows before at-Pos see none of these, nor do those whose window begins behind them.
		for j := max(0, (at-c.seq.Pos)*t.group-c.first); j < c.n && t.first(c, j) < end; j += dot.Rows {
			t.tile(l, c, j, min(dot.Rows, c.n-j), at, end)
		}
	}
}

// finish writes the result of query j of an item.
func (t *gqaTask) finish(c *gqaWork, j int, state *running, acc *float32) {
	out := t.result(c, j)
	t.dev.axpy.Scale(acc, t.wide, 1/state.sum)
	if t.bf16 {
		t.dev.convert.Unpack(out, acc, t.HeadDim)
	} else {
		copy(unsafe.Slice(out, t.HeadDim), unsafe.Slice(acc, t.HeadDim))
	}
}

// gqaJoining joins what queries got of stretches. An item is the queries of a gqaJoin.
type gqaJoining gqaTask

func (g *gqaJoining) do(_ *lane, i int) {
	t := (*gqaTask)(g)
	x := &t.joins[i]
	c := gqaWork{gqaItem: x.gqaItem, seq: &t.spans[x.span]}
	total, states := t.kept.of(x.kept, x.n)
	for j := range x.n {
		for part := 1; part < x.count; part++ {
			acc, state := t.kept.of(x.kept+part*x.n+j, 1)
			t.dev.joinRunning(&states[j], &state[0], rowAt(total, t.wide, j), acc, t.wide)
		}
		t.finish(&c, j, &states[j], rowAt(total, t.wide, j))
	}
}

// fetch asks for the keys and values of positions [from, to), if they are used where they are. The heads of a row lie apart, so cores
// do not see what comes next.
func (t *gqaTask) fetch(c *gqaWork, from, to int) {
	if t.lists.on || t.kv.narrow() {
		return
	}
	size := t.kv.dt.Size()
	for from < to {
		slot, n := t.paged.run(c.seq, from, to)
		keys := uintptr(t.kv.row(slot)) + uintptr(c.head*t.HeadDim*size)
		fetchRows(keys, t.HeadDim*size, t.kv.rowBytes, n)
		fetchRows(keys+uintptr(t.KVHeads*t.HeadDim*size), t.HeadDim*size, t.kv.rowBytes, n)
		from += n
	}
}

// read finds the keys and values of positions [from, to), or of those that the row lists in these places.
func (t *gqaTask) read(c *gqaWork, from, to int) {
	key, value := c.head*t.HeadDim, (t.KVHeads+c.head)*t.HeadDim
	if !t.lists.on {
		c.keys, c.values = t.keys(c.seq, from, to, key, t.HeadDim, c.keyScratch), t.keys(c.seq, from, to, value, t.HeadDim, c.valueScratch)
		return
	}
	list := t.lists.row(t.lists.of[c.span], c.seq.Row)[from:to]
	c.keys, c.values = t.gather(c.seq, list, key, t.HeadDim, c.keyScratch), t.gather(c.seq, list, value, t.HeadDim, c.valueScratch)
	c.keys.from, c.values.from = from, from
}

// blockRoom is the scratch that the keys or the values of a block take, in float32 values.
func (t *gqaTask) blockRoom() int {
	if t.lists.on {
		return t.gathered(t.HeadDim)
	}
	return t.kv.wideBlock(t.HeadDim)
}

// query is query j of an item.
func (t *gqaTask) query(c *gqaWork, j int) *float32 { return t.at(t.q, t.qStride, c, j) }

// result is where query j of an item puts its result.
func (t *gqaTask) result(c *gqaWork, j int) *float32 { return t.at(t.out, t.outStride, c, j) }

func (t *gqaTask) at(base *float32, stride int, c *gqaWork, j int) *float32 {
	row, head := c.seq.Row+(c.first+j)/t.group, c.head*t.group+(c.first+j)%t.group
	return shift(rowAt(base, stride, row), head*t.HeadDim)
}

// sees returns the number of keys that query j of an item may see.
func (t *gqaTask) sees(c *gqaWork, j int) int { return c.seq.Pos + (c.first+j)/t.group + 1 }

// first is the position of the first key that query j of an item sees.
func (t *gqaTask) first(c *gqaWork, j int) int { return t.First(t.sees(c, j) - 1) }

// part is the positions of [from, to) that query j of an item sees, maybe none.
func (t *gqaTask) part(c *gqaWork, j, from, to int) (begin, end int) {
	begin, end = max(from, t.first(c, j)), min(to, t.sees(c, j))
	return min(begin, end), end
}

// tile takes the keys of [from, to) that they may see into the softmax of the
// queries [j, j+n).
func (t *gqaTask) tile(l *lane, c *gqaWork, j, n, from, to int) {
	last := min(to, t.sees(c, j+n-1)) // no query of the tile sees further
	for i := range n {
		if t.bf16 {
			l.dot.X[i] = rowAt(c.query, t.wide, j+i)
		} else {
			l.dot.X[i] = t.query(c, j+i)
		}
	}
	l.dot.Stride, l.dot.K = c.keys.stride, t.HeadDim
	kernel := t.dev.tiles(t.bf16)[n]
	for pos := max(from, t.first(c, j)); pos < last; {
		rows, count := t.rows(&c.keys, c.seq, pos, last)
		for i := range n {
			l.dot.Out[i] = shift(rowAt(c.scores, keyBlock, i), pos-from)
		}
		l.dot.W, l.dot.N = rows, count
		kernel(&l.dot)
		pos += count
	}
	for i := range n {
		if begin, end := t.part(c, j+i, from, last); begin < end {
			t.fold(&c.state[j+i], shift(rowAt(c.scores, keyBlock, i), begin-from), end-begin, rowAt(c.acc, t.wide, j+i), t.wide)
		}
	}
	// All queries of the tile see the keys from where the last one's window begins up to where the
	// first one stands; the few before and behind are taken query by query.
	_, end := t.part(c, j, from, last)
	begin, _ := t.part(c, j+n-1, from, last)
	end = max(begin, end)
	for i := range n {
		if before, until := t.part(c, j+i, from, last); before < min(begin, until) {
			t.weigh(l, c, j, i, 1, from, before, min(begin, until))
		}
	}
	t.weigh(l, c, j, 0, n, from, begin, end)
	for i := 1; i < n; i++ {
		if begin, until := t.part(c, j+i, from, last); until > max(begin, end) {
			t.weigh(l, c, j, i, 1, from, max(begin, end), until)
		}
	}
}

// weigh adds the values of positions [pos, end) to the results of n queries from the i-th of the
// tile that begins at query j; its factors begin at position from.
func (t *gqaTask) weigh(l *lane, c *gqaWork, j, i, n, from, pos, end int) {
	kernels := &t.dev.axpy.F32
	if t.bf16 {
		kernels = &t.dev.axpy.BF16
	}
	l.axpy.Stride, l.axpy.Width = c.values.stride, t.HeadDim
	for m := range n {
		l.axpy.Acc[m] = rowAt(c.acc, t.wide, j+i+m)
	}
	for pos < end {
		rows, count := t.rows(&c.values, c.seq, pos, end)
		for m := range n {
			l.axpy.P[m] = shift(rowAt(c.scores, keyBlock, i+m), pos-from)
		}
		l.axpy.W, l.axpy.N = rows, count
		kernels[min(n, axpy.Rows)](&l.axpy)
		pos += count
	}
}
