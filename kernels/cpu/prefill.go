package cpu

import (
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

// prefillKeys is the number of keys that are expanded before rows meet them: they stay in the second-level cache, and a row's query and
// result in the first.
const prefillKeys = 4 * keyBlock

// prefillTask is MLA by its definition: for one span and one head, keys and values of some blocks of
// positions are expanded from the cached latents, then every query row that may see them takes them, block by block,
// into its running softmax.
type prefillTask struct {
	mla
	pieces []device.Span // of spans, on the tile unit
}

// MLAPrefill has the arguments of MLADecode and computes the same; it pays off when a span has many
// rows. Scratch per thread: prefillKeys rows of Nope+Rope+V values, keyBlock rows of Rank, of Rank+Rope more when
// the cache is of 8 bits, three values for each row of the longest span, and a head's weights
// widened to F32 when kvB is kept as integers. On the tile unit (prefillUnit) unitKeys rows of Nope+Rope+V of 16 bits, Nope+Rope for each
// row of the longest span, a head's weights twice, and some blocks.
func (d *Device) MLAPrefill(stream device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, in device.Spans, p device.MLA) {
	spans := in.List
	const op = "MLAPrefill"
	s := d.stream(op, stream)
	t := &s.prefill
	t.check(op, d, &out, &q, &cache, &kvB, spans, &p)
	flops, longest := 0, 0
	for i := range spans {
		longest = max(longest, spans[i].Len)
		keys := spans[i].Pos + spans[i].Len
		flops += 2 * p.Heads * keys * (p.Rank*(p.Nope+p.V) + spans[i].Len*(p.Nope+p.Rope+p.V))
	}
	ns := flops / d.speed.flopsPerNs
	scratch := keyBlock*(convert.Padded(p.Rank)+dot.Rows) + prefillKeys*(p.Nope+p.Rope+p.V) + piece(runningSize*longest) +
		t.kv.wideBlock(p.Rank+p.Rope) + t.wideWeights()
	if t.onTiles() {
		if s.shared(ns) {
			t.cutSpans(len(s.lanes))
		}
		scratch = t.unitRoom(longest)
	}
	s.each(t, len(t.spans)*p.Heads, ns, scratch)
	t.spans = nil
}

// prefillScratch is the memory of one item.
type prefillScratch struct {
	latents *float32 // [keyBlock, Padded(Rank)] cache rows as kv_b's type wants them
	keys    *float32 // [prefillKeys, Nope+Rope]
	values  *float32 // [prefillKeys, V]
	scores  *float32 // [dot.Rows, keyBlock]
	block   *float32 // wideBlock
	state   []running
	wide    int
	weights wideHead
}

func (t *prefillTask) scratch(l *lane, rows int) (c prefillScratch) {
	c.wide = convert.Padded(t.Rank)
	qk := t.Nope + t.Rope
	l.arena.clear()
	c.latents, c.keys = l.arena.take(keyBlock*c.wide), l.arena.take(prefillKeys*qk)
	c.values, c.scores = l.arena.take(prefillKeys*t.V), l.arena.take(keyBlock*dot.Rows)
	if n := t.kv.wideBlock(t.Rank + t.Rope); n > 0 {
		c.block = l.arena.take(n)
	}
	c.state = unsafe.Slice((*running)(unsafe.Pointer(l.arena.take(runningSize*rows))), rows)
	clear(c.state)
	return c
}

func (t *prefillTask) do(l *lane, i int) {
	span, head := &t.spans[i/t.Heads], i%t.Heads
	if t.onTiles() {
		t.doOnUnit(l, span, head)
		return
	}
	c := t.scratch(l, span.Len)
	if t.integer() {
		c.weights = t.widenHead(l, head)
	}
	for r := range span.Len {
		clearF32(t.result(span.Row+r, head), t.V)
	}
	keys := span.Pos + span.Len
	for from := 0; from < keys; from += prefillKeys {
		to := min(from+prefillKeys, keys)
		for at := from; at < to; at += keyBlock {
			b := t.blockAt(&c, at-from)
			t.expand(l, &b, span, head, at, min(at+keyBlock, to))
		}
		// Row r sees keys up to Pos+r, so rows before `from` see none of these.
		for r := max(0, from-span.Pos); r < span.Len; r += dot.Rows {
			n := min(dot.Rows, span.Len-r)
			for at := from; at < min(to, span.Pos+r+n); at += keyBlock {
				b, first := t.blockAt(&c, at-from), max(r, at-span.Pos)
				t.rows(l, &b, span, head, first, r+n-first, at, min(at+keyBlock, to))
			}
		}
	}
	for r := range span.Len {
		t.dev.axpy.Scale(t.result(span.Row+r, head), t.V, 1/c.state[r].sum)
	}
}

// blockAt is c with keys and values from the at-th of those at hand on.
func (t *prefillTask) blockAt(c *prefillScratch, at int) prefillScratch {
	b := *c
	b.keys, b.values = rowAt(c.keys, t.Nope+t.Rope, at), rowAt(c.values, t.V, at)
	return b
}

// expand fills keys and values for positions [from, to).
func (t *prefillTask) expand(l *lane, c *prefillScratch, span *device.Span, head, from, to int) {
	qk := t.Nope + t.Rope
	keys := t.keys(span, from, to, 0, t.Rank+t.Rope, c.block)
	for pos := from; pos < to; {
		rows, n := t.paged.rows(&keys, span, pos, to)
		for j := range n {
			t.latent(c, unsafe.Add(rows, j*keys.stride), pos-from+j)
		}
		pos += n
	}
	if t.integer() {
		t.expandWide(l, c, to-from)
		return
	}
	kernels := t.dev.tiles(t.kvBF16)
	l.dot.Stride, l.dot.K = t.kvRow, t.Rank
	for j := 0; j < to-from; j += dot.Rows {
		rows := min(dot.Rows, to-from-j)
		for i := range rows {
			l.dot.X[i] = rowAt(c.latents, c.wide, j+i)
			l.dot.Out[i] = rowAt(c.keys, qk, j+i)
		}
		l.dot.W, l.dot.N = t.keyWeights(head), t.Nope
		kernels[rows](&l.dot)
		for i := range rows {
			l.dot.Out[i] = rowAt(c.values, t.V, j+i)
		}
		l.dot.W, l.dot.N = t.valueWeights(head), t.V
		kernels[rows](&l.dot)
	}
}

// latent takes one cache row: its latent for kv_b, its rotated part as the end of the key.
func (t *prefillTask) latent(c *prefillScratch, row unsafe.Pointer, j int) {
	dst := rowAt(c.latents, c.wide, j)
	t.widenLatent(dst, row)
	if t.Rope == 0 {
		return
	}
	key, rest := shift(rowAt(c.keys, t.Nope+t.Rope, j), t.Nope), unsafe.Add(row, t.Rank*t.tileSize())
	if t.bf16 {
		t.dev.convert.Widen(key, (*uint16)(rest), t.Rope)
	} else {
		copy(unsafe.Slice(key, t.Rope), unsafe.Slice((*float32)(rest), t.Rope))
	}
}

// widenLatent brings the Rank values of a cache row to the order kv_b wants.
func (t *prefillTask) widenLatent(dst *float32, row unsafe.Pointer) {
	switch {
	case t.bf16 && t.kvBF16:
		t.dev.convert.WidenPack(dst, (*uint16)(row), t.Rank)
	case t.bf16:
		t.dev.convert.Widen(dst, (*uint16)(row), t.Rank)
	case t.kvBF16:
		t.dev.convert.Pack(dst, (*float32)(row), t.Rank)
	default:
		copy(unsafe.Slice(dst, t.Rank), unsafe.Slice((*float32)(row), t.Rank))
	}
}

// rows takes the block of keys into the softmax of query rows [r, r+n).
func (t *prefillTask) rows(l *lane, c *prefillScratch, span *device.Span, head, r, n, from, to int) {
	qk := t.Nope + t.Rope
	last := min(to, span.Pos+r+n) // no row of the tile sees further
	for i := range n {
		l.dot.X[i] = t.query(span.Row+r+i, head)
		l.dot.Out[i] = rowAt(c.scores, keyBlock, i)
	}
	l.dot.W, l.dot.Stride = unsafe.Pointer(c.keys), 4*qk
	l.dot.K, l.dot.N = qk, last-from
	t.dev.dot.F32[n](&l.dot)
	for i := range n {
		visible := min(last, span.Pos+r+i+1) - from
		t.fold(&c.state[r+i], rowAt(c.scores, keyBlock, i), visible, t.result(span.Row+r+i, head), t.V)
	}
	// All rows of the tile see the keys that the first one sees; the rest of the diagonal, up to
	// n-1 keys, is processed row by row.
	common := min(last, span.Pos+r+1) - from
	l.axpy.Stride, l.axpy.Width = 4*t.V, t.V
	l.axpy.W, l.axpy.N = unsafe.Pointer(c.values), common
	for i := range n {
		l.axpy.P[i], l.axpy.Acc[i] = rowAt(c.scores, keyBlock, i), t.result(span.Row+r+i, head)
	}
	t.dev.axpy.F32[min(n, axpy.Rows)](&l.axpy)
	for i := 1; i < n; i++ {
		visible := min(last, span.Pos+r+i+1) - from
		if visible == common {
			continue
		}
		l.axpy.P[0] = shift(rowAt(c.scores, keyBlock, i), common)
		l.axpy.Acc[0] = t.result(span.Row+r+i, head)
		l.axpy.W, l.axpy.N = unsafe.Pointer(rowAt(c.values, t.V, common)), visible-common
		t.dev.axpy.F32[1](&l.axpy)
	}
}
