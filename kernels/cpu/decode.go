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
// applied to the result. An item is one row with some heads.
type decodeTask struct {
	mla
	sparse
	list  []decodeRow
	heads int // heads per item
	whole decodeWhole
}

// decodeRow is a row of the batch and its span.
type decodeRow struct{ span, row int }

// MLADecode: out [T, Heads*V], q [T, Heads*(Nope+Rope)] F32 rotated, cache [slots, Rank+Rope] of
// any type, groups of I8 dividing Rank and Rope, kvB [Heads*(Nope+V), Rank] BF16 or F32, or
// integers: see decodequant.go. Row r of a span sees the cached keys 0..Pos+r. Scratch per thread:
// headBlock rows of 4*(Rank+Rope) + keyBlock values, or with a cache of 8 bits Heads such rows, and keyBlock rows of
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
			if t.chosen != nil {
				keys += t.sparse.n
			} else {
				keys += spans[i].Pos + r + 1
			}
		}
	}
	flops := 2*keys*p.Heads*(2*p.Rank+p.Rope) + 2*len(t.list)*p.Heads*(p.Nope+p.V)*p.Rank
	ns := flops / d.speed.flopsPerNs
	// If keys have to be widened or copied, every item does it again: so there are as few items as possible.
	again := t.kv.narrow() || t.chosen != nil
	t.heads = p.Heads
	if !again {
		t.heads = min(headBlock, p.Heads)
	}
	if s.shared(ns) {
		// A lone sequence is spread over the lanes by heads, at least four per item.
		enough := 2 * len(s.lanes)
		if again {
			enough = len(s.lanes)
		}
		for t.heads > dot.Rows && len(t.list)*((p.Heads+t.heads-1)/t.heads) < enough {
			t.heads = (t.heads/2 + dot.Rows - 1) &^ (dot.Rows - 1)
		}
	}
	wide := convert.Padded(p.Rank + p.Rope)
	scratch := t.heads*(3*wide+keyBlock) + wide + piece(runningSize*t.heads) + t.blockRoom()
	if t.integer() {
		t.absorbAll(s)
	}
	s.each(t, len(t.list)*((p.Heads+t.heads-1)/t.heads), ns, scratch)
	if t.integer() {
		t.expandAll(s)
	}
	t.spans = nil
}

// blockRoom is the scratch that a block of keys takes, in float32 values.
func (t *decodeTask) blockRoom() int {
	if t.chosen != nil {
		return t.gathered(t.Rank + t.Rope)
	}
	return t.kv.wideBlock(t.Rank + t.Rope)
}

// decodeScratch is the memory of one item.
type decodeScratch struct {
	absorbed *float32 // [heads, wide] the query in latent space, natural order
	query    *float32 // [heads, wide] the same as the tiles want it
	acc      *float32 // [heads, wide] weighted latents
	spare    *float32 // [wide] between orders
	scores   *float32 // [heads, keyBlock]
	block    *float32 // blockRoom
	wide     int
	state    []running
	chosen   []int32 // the positions that the row sees; nil: all
}

func (t *decodeTask) scratch(l *lane) (c decodeScratch) {
	c.wide = convert.Padded(t.Rank + t.Rope)
	l.arena.clear()
	c.absorbed, c.query = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*c.wide)
	c.acc, c.scores = l.arena.take(t.heads*c.wide), l.arena.take(t.heads*keyBlock)
	c.spare = l.arena.take(c.wide)
	if n := t.blockRoom(); n > 0 {
		c.block = l.arena.take(n)
	}
	c.state = unsafe.Slice((*running)(unsafe.Pointer(l.arena.take(runningSize*t.heads))), t.heads)
	clear(c.state)
	return c
}

func (t *decodeTask) do(l *lane, i int) {
	groups := (t.Heads + t.heads - 1) / t.heads
	row := t.list[i/groups]
	span := &t.spans[row.span]
	first := i % groups * t.heads
	heads := min(t.heads, t.Heads-first)
	c := t.scratch(l)
	for j := range heads {
		if t.integer() {
			dst := rowAt(c.absorbed, c.wide, j)
			copy(unsafe.Slice(dst, t.Rank), unsafe.Slice(t.latent(i/groups, first+j), t.Rank))
			t.rotated(&c, t.query(span.Row+row.row, first+j), j)
		} else {
			t.absorb(l, &c, span.Row+row.row, first+j, j)
		}
	}
	clearF32(c.acc, heads*c.wide)
	keys := span.Pos + row.row + 1
	if c.chosen = t.sparse.row(span.Row + row.row); c.chosen != nil {
		keys = len(c.chosen)
	}
	for from := 0; from < keys; from += keyBlock {
		t.take(l, &c, span, heads, from, min(from+keyBlock, keys))
	}
	for j := range heads {
		t.dev.axpy.Scale(rowAt(c.acc, c.wide, j), c.wide, 1/c.state[j].sum)
		if t.integer() {
			t.keep(rowAt(c.acc, c.wide, j), t.latent(i/groups, first+j))
		} else {
			t.expand(l, &c, span.Row+row.row, first+j, j)
		}
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
	t.rotated(c, q, j)
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

// take takes one block of keys into the running softmax of all heads: positions [from, to), or the chosen ones
// of these numbers.
func (t *decodeTask) take(l *lane, c *decodeScratch, span *device.Span, heads, from, to int) {
	scoreKernels, sumKernels := t.dev.tiles(t.bf16), &t.dev.axpy.F32
	if t.bf16 {
		sumKernels = &t.dev.axpy.BF16
	}
	var keys keyRows
	if c.chosen != nil {
		keys = t.gather(span, c.chosen[from:to], 0, t.Rank+t.Rope, c.block)
		keys.from = from
	} else {
		keys = t.keys(span, from, to, 0, t.Rank+t.Rope, c.block)
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

// expand applies the value half of kv_b to the weighted latents of one head.
func (t *decodeTask) expand(l *lane, c *decodeScratch, row, head, j int) {
	acc := rowAt(c.acc, c.wide, j)
	if t.bf16 != t.kvBF16 {
		if t.bf16 {
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
