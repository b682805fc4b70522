package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

// compressTask makes entries of raw rows. An item is an entry.
type compressTask struct {
	device.Compress
	entries, near    paged
	norm, ape, table *float32
	tStride          int
	items            []compressItem
}

type compressItem struct{ span, entry int }

// Compress: entries [blocks*EntryRows, Dim] and near [slots, Width] of any type, groups of I8 dividing Dim; norm [1, Dim] BF16 or F32, ape
// [Ratio, Parts*Dim] and table [P, Rope.Dim] F32. Shared scratch: Dim values. Scratch per thread: Ratio*Parts + 3 rows of Dim values, and a raw row.
func (d *Device) Compress(stream device.Stream, entries device.KV, in device.Spans, near device.KV, nearIn device.Spans, norm, ape, table device.Mat, p device.Compress) {
	const op = "Compress"
	s := d.stream(op, stream)
	t := &s.compress
	if p.Dim < 1 || p.Ratio < 1 || p.BlockTokens < 1 || p.Rope.Heads != 1 || p.Rope.HeadDim != p.Dim || p.Rope.Offset+p.Rope.Dim > p.Dim {
		fail(op, "sizes %+v", p)
	}
	t.Compress = p
	t.entries.block, t.entries.per, t.near.block = p.BlockTokens, p.Ratio, p.BlockTokens
	t.ape = f32(op, "ape", &ape, p.Ratio, p.Parts()*p.Dim)
	if !ape.Dense() {
		fail(op, "ape is %s, need dense rows", ape)
	}
	t.table, t.tStride = f32(op, "table", &table, table.Rows, p.Rope.Dim), table.Stride
	rows := sameSpans(op, in.List, nearIn.List)
	t.entries.bind(op, d, &entries, newKVCache(op, &entries, p.Dim, p.Dim), in.List, rows)
	t.near.bind(op, d, &near, newKVCache(op, &near, p.Width(), p.Dim), nearIn.List, rows)
	s.arena.reset(piece(p.Dim))
	t.norm = unsafe.SliceData(d.wide(op, "norm", &norm, s.arena.take(p.Dim), p.Dim))
	t.items = t.items[:0]
	for i := range in.List {
		sp := &in.List[i]
		for e := sp.Pos / p.Ratio; device.Entry(e, p.Ratio) < sp.Pos+sp.Len; e++ {
			if e*p.Ratio >= table.Rows {
				fail(op, "position %d, the table of rotations has %d", e*p.Ratio, table.Rows)
			}
			t.items = append(t.items, compressItem{i, e})
		}
	}
	values := p.Ratio * p.Parts() * p.Dim
	s.each(t, len(t.items), len(t.items)*values*poolNs/16, piece(values)+piece(p.Width())+3*piece(p.Dim))
	t.entries.spans, t.near.spans = nil, nil
}

// sameSpans checks that two lists are of the same rows with other tables, and returns the end of the rows.
func sameSpans(op string, a, b []device.Span) (rows int) {
	if len(a) != len(b) {
		fail(op, "%d spans of one cache, %d of the other", len(a), len(b))
	}
	for i := range a {
		if x, y := &a[i], &b[i]; x.Row != y.Row || x.Len != y.Len || x.Pos != y.Pos {
			fail(op, "span %d is %d rows from %d at %d in one cache, %d from %d at %d in the other", i, x.Len, x.Row, x.Pos, y.Len, y.Row, y.Pos)
		}
		rows = max(rows, a[i].Row+a[i].Len)
	}
	return rows
}

func (t *compressTask) do(l *lane, i int) {
	item := t.items[i]
	l.arena.clear()
	parts, d := t.Parts(), t.Dim
	take := func(n int) []float32 { return unsafe.Slice(l.arena.take(n), n) }
	gates, raw, top, total, sum := take(parts*t.Ratio*d), take(t.Width()), take(d), take(d), take(d)
	first := max(0, item.entry+1-parts) // window
	rows := (item.entry + 1 - first) * t.Ratio
	span := &t.near.spans[item.span]
	for j := range rows {
		part := t.part(item.entry, first, j)
		t.near.kv.read(raw, t.near.slot(span, first*t.Ratio+j))
		biased(gates[j*d:][:d], raw[(parts+part)*d:][:d], unsafe.Slice(shift(t.ape, (j%t.Ratio*parts+part)*d), d), top, j == 0)
	}
	clear(total)
	clear(sum)
	for j := range rows {
		t.near.kv.read(raw, t.near.slot(span, first*t.Ratio+j))
		t.near.dev.weigh(sum, total, gates[j*d:][:d], raw[t.part(item.entry, first, j)*d:][:d], top)
	}
	for c := range sum {
		sum[c] /= total[c]
	}
	to := unsafe.SliceData(sum)
	dev := t.near.dev
	dev.norm.MulF32(to, to, t.norm, d, rmsScale(dev.norm.SumSquares(to, d), d, t.Eps))
	if t.Rope.Dim > 0 {
		turn := dev.rope.Halves
		if t.Rope.Interleaved {
			turn = dev.rope.Pairs
		}
		turn(shift(to, t.Rope.Offset), rowAt(t.table, t.tStride, item.entry*t.Ratio), 1, d, t.Rope.Dim)
	}
	t.entries.kv.store(dev.convert, t.entries.slot(&t.entries.spans[item.span], device.Entry(item.entry, t.Ratio)), to, d)
}

// part is the part of row j of those that an entry takes.
func (t *compressTask) part(entry, first, j int) int {
	return t.Parts() - 1 - (entry - first - j/t.Ratio)
}

// compressedTask is attention over tokens and entries. An item is some heads of a row.
type compressedTask struct {
	device.Compressed
	near, entries paged
	out, q        *float32
	outStride     int
	qStride       int
	chosen        *int32 // nil: all entries
	chosenStride  int
	n             int
	sinks         *float32
	wide          int // values between rows of scratch
	items         []compressedHeads
}

type compressedHeads struct{ span, row, head, heads int }

// Compressed: out and q [T, Heads*Dim] F32, entries and near [slots, Dim] of one type, groups of I8 dividing Dim; chosen [T, n] I32 or
// absent, sinks [1, Heads] F32. Scratch per thread: 2*Heads + keyBlock rows of Dim values, and dot.Rows of keyBlock.
func (d *Device) Compressed(stream device.Stream, out, q device.Mat, entries device.KV, in device.Spans, near device.KV, nearIn device.Spans, chosen, sinks device.Mat, p device.Compressed) {
	const op = "Compressed"
	s := d.stream(op, stream)
	t := &s.compressed
	if p.Heads < 1 || p.Dim < 1 || p.Window < 1 || p.Ratio < 0 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", p)
	}
	t.Compressed, t.wide = p, convert.Padded(p.Dim)
	t.out, t.outStride = f32(op, "out", &out, q.Rows, p.Heads*p.Dim), out.Stride
	t.q, t.qStride = f32(op, "q", &q, q.Rows, p.Heads*p.Dim), q.Stride
	t.sinks = f32(op, "sinks", &sinks, 1, p.Heads)
	t.near.block, t.near.scale = p.BlockTokens, p.Scale
	t.near.bind(op, d, &near, newKVCache(op, &near, p.Dim, p.Dim), nearIn.List, q.Rows)
	if p.Ratio > 0 {
		if entries.DType != near.DType {
			fail(op, "entries are %s, rows %s", entries.Mat, near.Mat)
		}
		sameSpans(op, in.List, nearIn.List)
		t.entries.block, t.entries.per, t.entries.scale = p.BlockTokens, p.Ratio, p.Scale
		t.entries.bind(op, d, &entries, newKVCache(op, &entries, p.Dim, p.Dim), in.List, q.Rows)
	}
	if t.chosen = nil; !chosen.Zero() {
		t.n = chosen.Cols
		t.chosen, t.chosenStride = positions(op, &chosen, q.Rows, t.n), chosen.Stride
	}
	pairs := t.cut(op, s)
	scratch := 2*p.Heads*t.wide + dot.Rows*keyBlock + piece(runningSize*p.Heads) + piece(keyBlock*t.near.kv.wideRow(p.Dim)/4)
	s.each(t, len(t.items), 4*pairs*p.Heads*p.Dim/d.speed.flopsPerNs, scratch)
	t.near.spans, t.entries.spans = nil, nil
}

// cut makes the items: a row with all heads or, if there are fewer rows than threads, with some. It returns the number of
// pairs of rows and what they see.
func (t *compressedTask) cut(op string, s *Stream) (pairs int) {
	rows := 0
	for i := range t.near.spans {
		sp := &t.near.spans[i]
		rows += sp.Len
		for r := range sp.Len {
			sees := t.Sees(sp.Pos + r)
			if t.chosen != nil {
				inRange(op, "chosen", t.list(sp.Row+r), sees)
				sees = len(t.list(sp.Row + r))
			}
			pairs += min(t.Window, sp.Pos+r+1) + sees
		}
	}
	heads := t.Heads
	for heads > dot.Rows && rows*((t.Heads+heads-1)/heads) < len(s.lanes) {
		heads = (heads/2 + dot.Rows - 1) &^ (dot.Rows - 1)
	}
	t.items = t.items[:0]
	for i := range t.near.spans {
		for r := range t.near.spans[i].Len {
			for h := 0; h < t.Heads; h += heads {
				t.items = append(t.items, compressedHeads{i, r, h, min(heads, t.Heads-h)})
			}
		}
	}
	return pairs
}

// list is the entries that a row has chosen, up to the first -1.
func (t *compressedTask) list(row int) []int32 {
	list := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.chosen), 4*t.chosenStride*row)), t.n)
	for i, e := range list {
		if e == -1 {
			return list[:i]
		}
	}
	return list
}

// compressedWork is an item being computed and its memory.
type compressedWork struct {
	compressedHeads
	query, acc *float32 // [heads, wide]
	scores     *float32 // [dot.Rows, keyBlock]
	state      []running
	rows       *float32
	at         [keyBlock]int32 // positions of the rows at hand
}

func (t *compressedTask) do(l *lane, i int) {
	c := compressedWork{compressedHeads: t.items[i]}
	dev, bf16 := t.near.dev, t.near.bf16
	l.arena.clear()
	c.query, c.acc = l.arena.take(c.heads*t.wide), l.arena.take(c.heads*t.wide)
	c.scores = l.arena.take(dot.Rows * keyBlock)
	c.state = unsafe.Slice((*running)(unsafe.Pointer(l.arena.take(runningSize*c.heads))), c.heads)
	c.rows = l.arena.take(keyBlock * t.near.kv.wideRow(t.Dim) / 4)
	sp := &t.near.spans[c.span]
	row, pos := sp.Row+c.row, sp.Pos+c.row
	clearF32(c.acc, c.heads*t.wide)
	for h := range c.heads {
		c.state[h] = running{top: *shift(t.sinks, c.head+h), sum: 1} // a key whose value is zero
		from, to := shift(rowAt(t.q, t.qStride, row), (c.head+h)*t.Dim), rowAt(c.query, t.wide, h)
		if bf16 {
			dev.convert.Pack(to, from, t.Dim)
		} else {
			copy(unsafe.Slice(to, t.Dim), unsafe.Slice(from, t.Dim))
		}
	}
	first := t.First(pos)
	t.through(l, &c, &t.near, sp, pos+1-first, func(j int) int32 { return int32(first + j) })
	if t.Ratio > 0 {
		span, sees := &t.entries.spans[c.span], t.Sees(pos)
		entry := func(j int) int32 { return int32(device.Entry(j, t.Ratio)) }
		if t.chosen != nil {
			list := t.list(row)
			sees, entry = len(list), func(j int) int32 { return int32(device.Entry(int(list[j]), t.Ratio)) }
		}
		t.through(l, &c, &t.entries, span, sees, entry)
	}
	for h := range c.heads {
		acc, out := rowAt(c.acc, t.wide, h), shift(rowAt(t.out, t.outStride, row), (c.head+h)*t.Dim)
		dev.axpy.Scale(acc, t.wide, 1/c.state[h].sum)
		if bf16 {
			dev.convert.Unpack(out, acc, t.Dim)
		} else {
			copy(unsafe.Slice(out, t.Dim), unsafe.Slice(acc, t.Dim))
		}
	}
}

// through takes n rows of a cache, at the positions that at says, into the softmax of all heads of an item.
func (t *compressedTask) through(l *lane, c *compressedWork, cache *paged, span *device.Span, n int, at func(j int) int32) {
	for from := 0; from < n; from += keyBlock {
		count := min(keyBlock, n-from)
		for j := range count {
			c.at[j] = at(from + j)
		}
		rows := cache.gather(span, c.at[:count], 0, t.Dim, c.rows)
		for h := 0; h < c.heads; h += dot.Rows {
			t.tile(l, c, cache, &rows, h, min(dot.Rows, c.heads-h), count)
		}
	}
}

// tile takes count rows into the softmax of the heads [h, h+n) of an item.
func (t *compressedTask) tile(l *lane, c *compressedWork, cache *paged, rows *keyRows, h, n, count int) {
	l.dot.Stride, l.dot.K, l.dot.W, l.dot.N = rows.stride, t.Dim, rows.wide, count
	for j := range n {
		l.dot.X[j], l.dot.Out[j] = rowAt(c.query, t.wide, h+j), rowAt(c.scores, keyBlock, j)
	}
	cache.dev.tiles(cache.bf16)[n](&l.dot)
	kernels := &cache.dev.axpy.F32
	if cache.bf16 {
		kernels = &cache.dev.axpy.BF16
	}
	for j := range n {
		scores, acc := rowAt(c.scores, keyBlock, j), rowAt(c.acc, t.wide, h+j)
		cache.fold(&c.state[h+j], scores, count, acc, t.wide)
		l.axpy.P[j], l.axpy.Acc[j] = scores, acc
	}
	l.axpy.W, l.axpy.Stride, l.axpy.N, l.axpy.Width = rows.wide, rows.stride, count, t.Dim
	kernels[n](&l.axpy)
}
