package cpu

import (
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

const (
	// prefillRows is the number of query rows that meet a block of keys together.
	prefillRows = 32
	// partBytes is the size of the part of expanded keys or values that they meet at a time: it stays in
	// the first-level cache.
	partBytes = 24 << 10
)

// prefillTask is MLA by its definition: for one span and one head, keys and values of a block of
// positions are expanded from the cached latents, then every query row that may see them takes them
// into its running softmax.
type prefillTask struct{ mla }

// MLAPrefill has the arguments of MLADecode and computes the same; it pays off when a span has many
// rows. Scratch per thread: keyBlock rows of 2*Nope+Rope+2*V+Rank values, of Rank+Rope more when
// the cache is of 8 bits, three values for each row of the longest span, and a head's weights
// widened to F32 when kvB is kept as integers.
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
	scratch := keyBlock*(convert.Padded(p.Rank)+p.Nope+p.Rope+p.V+prefillRows) + piece(runningSize*longest) +
		t.kv.wideBlock(p.Rank+p.Rope) + t.wideWeights()
	s.each(t, len(spans)*p.Heads, flops/d.speed.flopsPerNs, scratch)
	t.spans = nil
}

// prefillScratch is the memory of one item.
type prefillScratch struct {
	latents *float32 // [keyBlock, Padded(Rank)] cache rows as kv_b's type wants them
	keys    *float32 // [keyBlock, Nope+Rope]
	values  *float32 // [keyBlock, V]
	scores  *float32 // [prefillRows, keyBlock]
	block   *float32 // wideBlock
	state   []running
	wide    int
	weights wideHead
}

func (t *prefillTask) scratch(l *lane, rows int) (c prefillScratch) {
	c.wide = convert.Padded(t.Rank)
	qk := t.Nope + t.Rope
	l.arena.clear()
	c.latents, c.keys = l.arena.take(keyBlock*c.wide), l.arena.take(keyBlock*qk)
	c.values, c.scores = l.arena.take(keyBlock*t.V), l.arena.take(keyBlock*prefillRows)
	if n := t.kv.wideBlock(t.Rank + t.Rope); n > 0 {
		c.block = l.arena.take(n)
	}
	c.state = unsafe.Slice((*running)(unsafe.Pointer(l.arena.take(runningSize*rows))), rows)
	clear(c.state)
	return c
}

func (t *prefillTask) do(l *lane, i int) {
	span, head := &t.spans[i/t.Heads], i%t.Heads
	c := t.scratch(l, span.Len)
	if t.integer() {
		c.weights = t.widenHead(l, head)
	}
	for r := range span.Len {
		clearF32(t.result(span.Row+r, head), t.V)
	}
	keys := span.Pos + span.Len
	for from := 0; from < keys; from += keyBlock {
		to := min(from+keyBlock, keys)
		t.expand(l, &c, span, head, from, to)
		// Row r sees keys up to Pos+r, so rows before `from` see none of these.
		for r := max(0, from-span.Pos); r < span.Len; r += prefillRows {
			t.rows(l, &c, span, head, r, min(prefillRows, span.Len-r), from, to)
		}
	}
	for r := range span.Len {
		t.dev.axpy.Scale(t.result(span.Row+r, head), t.V, 1/c.state[r].sum)
	}
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

// rows takes the block of keys into the softmax of query rows [r, r+n). Keys and values go in parts.
func (t *prefillTask) rows(l *lane, c *prefillScratch, span *device.Span, head, r, n, from, to int) {
	last := min(to, span.Pos+r+n) // no row sees further
	part := max(dot.Rows, partBytes/4/max(t.Nope+t.Rope, t.V))
	for pos := from; pos < last; pos += part {
		for i := 0; i < n; i += dot.Rows {
			m := min(dot.Rows, n-i)
			t.score(l, c, span, head, r, i, m, from, pos, min(pos+part, t.sees(span, r+i+m-1, last)))
		}
	}
	for i := range n {
		t.fold(&c.state[r+i], rowAt(c.scores, keyBlock, i), t.sees(span, r+i, last)-from, t.result(span.Row+r+i, head), t.V)
	}
	for pos := from; pos < last; pos += part {
		end := min(pos+part, last)
		for i := 0; i < n; i += axpy.Rows {
			// All rows of the tile see the keys that the first one sees; the rest of the diagonal, up
			// to m-1 keys, is processed row by row.
			m := min(axpy.Rows, n-i)
			common := max(pos, t.sees(span, r+i, end))
			t.weigh(l, c, span, head, r, i, m, from, pos, common)
			for j := i + 1; j < i+m; j++ {
				t.weigh(l, c, span, head, r, j, 1, from, common, t.sees(span, r+j, end))
			}
		}
	}
}

// sees is the end of the positions that row r of a span sees, at most end.
func (t *prefillTask) sees(span *device.Span, r, end int) int { return min(end, span.Pos+r+1) }

// score computes the scores of positions [pos, end) for m rows from the i-th of those from row r on.
func (t *prefillTask) score(l *lane, c *prefillScratch, span *device.Span, head, r, i, m, from, pos, end int) {
	if pos >= end {
		return
	}
	qk := t.Nope + t.Rope
	for j := range m {
		l.dot.X[j] = t.query(span.Row+r+i+j, head)
		l.dot.Out[j] = shift(rowAt(c.scores, keyBlock, i+j), pos-from)
	}
	l.dot.W, l.dot.Stride = unsafe.Pointer(rowAt(c.keys, qk, pos-from)), 4*qk
	l.dot.K, l.dot.N = qk, end-pos
	t.dev.dot.F32[m](&l.dot)
}

// weigh adds the values of positions [pos, end) to the results of m rows from the i-th of those from row
// r on.
func (t *prefillTask) weigh(l *lane, c *prefillScratch, span *device.Span, head, r, i, m, from, pos, end int) {
	if pos >= end {
		return
	}
	for j := range m {
		l.axpy.P[j], l.axpy.Acc[j] = shift(rowAt(c.scores, keyBlock, i+j), pos-from), t.result(span.Row+r+i+j, head)
	}
	l.axpy.W, l.axpy.Stride = unsafe.Pointer(rowAt(c.values, t.V, pos-from)), 4*t.V
	l.axpy.N, l.axpy.Width = end-pos, t.V
	t.dev.axpy.F32[m](&l.axpy)
}
