package cpu

import (
	"unsafe"

	"krater/kernels/cpu/qrows"
)

// With kv_b in integers, decode absorbs and expands for all rows of a batch at once, head by head,
// so that weights are read once. Queries are quantised by the groups of the key half, the weighted
// latents by those of the value half; both products equal MatMulQ's to the bit. Attention in
// between is unchanged. Shared scratch: Heads rows of 6*Rank bytes for each row of the batch.

// decodeWhole is the data that the steps of a batch pass on, in the stream's arena.
type decodeWhole struct {
	latents *float32  // [rows, Heads, wide] queries in latent space, then weighted latents
	wide    int       // padded Rank
	ints    quantRows // [Heads*rows, padded Nope or Rank], by the head
	index   []int32   // the batch's rows
}

// latent returns the latents of a row and head. The padding up to wide is zero after weighting.
func (t *decodeTask) latent(i, head int) *float32 {
	return rowAt(t.whole.latents, t.whole.wide, i*t.Heads+head)
}

// keep brings a head's weighted latents, as the tiles left them, into natural order.
func (t *decodeTask) keep(acc, to *float32) {
	if t.bf16 {
		t.dev.convert.Unpack(to, acc, t.Rank)
	} else {
		copy(unsafe.Slice(to, t.Rank), unsafe.Slice(acc, t.Rank))
	}
	clear(unsafe.Slice(to, t.whole.wide)[t.Rank:])
}

// absorbAll fills the latents with queries.
func (t *decodeTask) absorbAll(s *Stream) {
	w, n := &t.whole, len(t.list)*t.Heads
	w.wide = paddedCols(t.Rank)
	w.index = w.index[:0]
	for _, r := range t.list {
		w.index = append(w.index, int32(t.spans[r.span].Row+r.row))
	}
	k, v := &t.kq[0], &t.vq[0]
	values := piece(n*max(k.k, v.k)/4) + 2*piece(n*max(k.groups(), v.groups()))
	s.arena.reset(piece(n*w.wide) + values)
	if n == 0 {
		return
	}
	w.latents = s.arena.take(n * w.wide)
	w.ints.q = (*int8)(unsafe.Pointer(s.arena.take(n * max(k.k, v.k) / 4)))
	w.ints.scale = s.arena.take(n * max(k.groups(), v.groups()))
	w.ints.bias = (*int32)(unsafe.Pointer(s.arena.take(n * max(k.groups(), v.groups()))))
	t.each(s, (*decodeAbsorb)(t), t.kq)
}

// expandAll turns the weighted latents into results.
func (t *decodeTask) expandAll(s *Stream) {
	if len(t.list) > 0 {
		t.each(s, (*decodeExpand)(t), t.vq)
	}
}

// each runs a task for every head.
func (t *decodeTask) each(s *Stream, heads task, w []quantProduct) {
	rows := len(t.list)
	w0 := &w[0]
	t.whole.ints.shape(w0)
	s.each(heads, t.Heads, t.Heads*w0.ns(t.dev, rows), max(t.dev.unit.scratch(w0, rows), piece(w0.k)))
}

// shape makes the rows dense and as wide as a product wants them.
func (x *quantRows) shape(p *quantProduct) {
	x.k, x.group = p.k, p.steps*qrows.Block
	x.qStride, x.scaleStride, x.biasStride = p.k, p.groups(), p.groups()
}

// decodeAbsorb is the first step of one head.
type decodeAbsorb decodeTask

func (a *decodeAbsorb) do(l *lane, h int) {
	t := (*decodeTask)(a)
	rows, k := len(t.list), &t.kq[h]
	for i, row := range t.whole.index {
		x := t.query(int(row), h)
		if t.Nope < k.k {
			l.arena.clear()
			padded := l.arena.take(k.k)
			copy(unsafe.Slice(padded, k.k), unsafe.Slice(x, t.Nope))
			clear(unsafe.Slice(padded, k.k)[t.Nope:])
			x = padded
		}
		t.quantise(k, h*rows+i, x)
	}
	out := quantOutput{base: t.latent(0, h), stride: t.Heads * t.whole.wide}
	k.multiply(t.dev, l, quantInput{quantRows: &t.whole.ints, first: h * rows}, out, rows, 0, k.tiles())
}

// decodeExpand is the last step of one head.
type decodeExpand decodeTask

func (e *decodeExpand) do(l *lane, h int) {
	t := (*decodeTask)(e)
	rows, v := len(t.list), &t.vq[h]
	for i := range rows {
		t.quantise(v, h*rows+i, t.latent(i, h))
	}
	out := quantOutput{base: t.result(0, h), stride: t.outStride, index: t.whole.index}
	v.multiply(t.dev, l, quantInput{quantRows: &t.whole.ints, first: h * rows}, out, rows, 0, v.tiles())
}

// quantise writes row r of the integers for a product.
func (t *decodeTask) quantise(p *quantProduct, r int, x *float32) {
	q, scale, bias := t.whole.ints.row(r)
	t.dev.qrows.Quantize(x, q, scale, bias, p.groups(), p.steps)
}
