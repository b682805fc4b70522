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

// decodeTask is MLA in the absorbed form (DeepSeek-V2, section 2.1.3): the key
// half of kv_b is folded into the query, attention runs over the latents
// themselves, the value half of kv_b is applied to the result. An item is one
// row with up to headBlock heads.
type decodeTask struct {
	mla
	rows  []decodeRow
	heads int // heads per item
}

// decodeRow is a row of the batch and its span.
type decodeRow struct{ span, row int }

// MLADecode: out [T, Heads*V], q [T, Heads*(Nope+Rope)] F32 rotated, cache
// [slots, Rank+Rope] and kvB [Heads*(Nope+V), Rank] BF16 or F32. Row r of a span
// sees the cached keys 0..Pos+r. Scratch per thread: headBlock rows of
// 4*(Rank+Rope) + keyBlock values.
func (d *Device) MLADecode(stream device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA) {
	const op = "MLADecode"
	s := d.stream(op, stream)
	t := &s.decode
	t.check(op, d, &out, &q, &cache.Mat, &kvB.F, spans, &p)
	t.rows = t.rows[:0]
	keys := 0
	for i := range spans {
		for r := range spans[i].Len {
			t.rows = append(t.rows, decodeRow{span: i, row: r})
			keys += spans[i].Pos + r + 1
		}
	}
	flops := 2*keys*p.Heads*(2*p.Rank+p.Rope) + 2*len(t.rows)*p.Heads*(p.Nope+p.V)*p.Rank
	ns := flops / d.speed.flopsPerNs
	t.heads = min(headBlock, p.Heads)
	if s.shared(ns) {
		// A lone sequence spreads over the lanes by heads, four at least.
		for t.heads > dot.Rows && len(t.rows)*((p.Heads+t.heads-1)/t.heads) < 2*len(s.lanes) {
			t.heads = (t.heads/2 + dot.Rows - 1) &^ (dot.Rows - 1)
		}
	}
	wide := convert.Padded(p.Rank + p.Rope)
	scratch := t.heads*(3*wide+keyBlock) + wide + piece(runningSize*t.heads)
	s.each(t, len(t.rows)*((p.Heads+t.heads-1)/t.heads), ns, scratch)
	t.spans = nil
}

// decodeScratch is the memory of one item, rows of headBlock heads.
type decodeScratch struct {
	absorbed *float32 // [heads, wide] the query in latent space, natural order
	query    *float32 // [heads, wide] the same as the cache's type wants it
	acc      *float32 // [heads, wide] weighted latents
	spare    *float32 // [wide] between orders
	scores   *float32 // [heads, keyBlock]
	wide     int
	state    []running
}

func (t *decodeTask) scratch(l *lane) (c decodeScratch) {
	c.wide = convert.Padded(t.Rank + t.Rope)
	l.arena.clear()
	c.absorbed, c.query = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*c.wide)
	c.acc, c.scores = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*keyBlock)
	c.spare = l.arena.take(c.wide)
	c.state = unsafe.Slice((*running)(unsafe.Pointer(l.arena.take(runningSize*t.heads))), t.heads)
	clear(c.state)
	return c
}

func (t *decodeTask) do(l *lane, i int) {
	groups := (t.Heads + t.heads - 1) / t.heads
	row := t.rows[i/groups]
	span := &t.spans[row.span]
	first := i % groups * t.heads
	heads := min(t.heads, t.Heads-first)
	c := t.scratch(l)
	for j := range heads {
		t.absorb(l, &c, span.Row+row.row, first+j, j)
	}
	clearF32(c.acc, heads*c.wide)
	keys := span.Pos + row.row + 1
	for from := 0; from < keys; from += keyBlock {
		t.keys(l, &c, span, heads, from, min(from+keyBlock, keys))
	}
	for j := range heads {
		t.expand(l, &c, span.Row+row.row, first+j, j)
	}
}

// absorb makes the query of one head: q_nope * W_k, then q_rope.
func (t *decodeTask) absorb(l *lane, c *decodeScratch, row, head, j int) {
	q, dst := t.query(row, head), rowAt(c.absorbed, c.wide, j)
	acc := dst
	kernel := t.dev.axpy.F32[1]
	if t.kvBF16 {
		acc, kernel = c.spare, t.dev.axpy.BF16[1]
	}
	clearF32(acc, convert.Padded(t.Rank))
	l.axpy.P[0], l.axpy.Acc[0] = q, acc
	l.axpy.W, l.axpy.Stride = t.keyWeights(head), t.kvRow
	l.axpy.N, l.axpy.Width = t.Nope, t.Rank
	kernel(&l.axpy)
	if t.kvBF16 {
		t.dev.convert.Unpack(dst, acc, t.Rank)
	}
	if t.Rope > 0 { // else there is nothing behind the query to point at
		copy(unsafe.Slice(shift(dst, t.Rank), t.Rope), unsafe.Slice(shift(q, t.Nope), t.Rope))
	}
	if t.cacheBF16 {
		t.dev.convert.Pack(rowAt(c.query, c.wide, j), dst, t.Rank+t.Rope)
	} else {
		copy(unsafe.Slice(rowAt(c.query, c.wide, j), t.Rank+t.Rope), unsafe.Slice(dst, t.Rank+t.Rope))
	}
}

// keys takes one block of keys into the running softmax of all heads.
func (t *decodeTask) keys(l *lane, c *decodeScratch, span *device.Span, heads, from, to int) {
	scoreKernels, sumKernels := t.dev.tiles(t.cacheBF16), &t.dev.axpy.F32
	if t.cacheBF16 {
		sumKernels = &t.dev.axpy.BF16
	}
	l.dot.Stride, l.dot.K = t.cacheRow, t.Rank+t.Rope
	for pos := from; pos < to; {
		rows, n := t.run(span, pos, to)
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
	l.axpy.Stride, l.axpy.Width = t.cacheRow, t.Rank
	for pos := from; pos < to; {
		rows, n := t.run(span, pos, to)
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

// expand applies the value half of kv_b to one head's weighted latents.
func (t *decodeTask) expand(l *lane, c *decodeScratch, row, head, j int) {
	acc := rowAt(c.acc, c.wide, j)
	t.dev.axpy.Scale(acc, c.wide, 1/c.state[j].sum)
	if t.cacheBF16 != t.kvBF16 {
		if t.cacheBF16 {
			t.dev.convert.Unpack(c.spare, acc, t.Rank)
		} else {
			t.dev.convert.Pack(c.spare, acc, t.Rank)
		}
		acc = c.spare
	}
	l.dot.X[0], l.dot.Out[0] = acc, t.result(row, head)
	l.dot.W, l.dot.Stride = t.valueWeights(head), t.kvRow
	l.dot.K, l.dot.N = t.Rank, t.V
	t.dev.tiles(t.kvBF16)[1](&l.dot)
}
