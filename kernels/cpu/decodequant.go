package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/qrows"
)

// With kv_b in integers, decode absorbs and expands for all rows of a batch at once, head by head,
// so that weights are read once. Queries are quantised by the groups of the key half, the weighted
// latents by those of the value half; both products equal MatMulQ's to the bit. Attention in
// between is unchanged. Where items are stretches of keys, other types of kv_b have these steps too.
// Shared scratch: Heads rows of 6*Rank bytes for each row of the batch.

// decodeWhole is the data that the steps of a batch pass on, in the stream's arena.
type decodeWhole struct {
	on      bool
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
	t.natural(to, acc)
	clear(unsafe.Slice(to, t.whole.wide)[t.Rank:])
}

// begin takes the memory of the latents and of what stretches keep.
func (t *decodeTask) begin(s *Stream) {
	w, n := &t.whole, len(t.list)*t.Heads
	if w.on = n > 0 && (t.integer() || t.apart); !w.on {
		return
	}
	w.wide = paddedCols(t.Rank)
	w.index = w.index[:0]
	for _, r := range t.list {
		w.index = append(w.index, int32(t.spans[r.span].Row+r.row))
	}
	wide := convert.Padded(t.Rank + t.Rope)
	room, cols, groups := piece(n*w.wide)+t.kept.room(wide), 0, 0
	if t.integer() {
		k, v := &t.kq[0], &t.vq[0]
		cols, groups = n*max(k.k, v.k)/4, n*max(k.groups(), v.groups())
		room += piece(cols) + 2*piece(groups)
	}
	s.arena.reset(room)
	w.latents = s.arena.take(n * w.wide)
	t.kept.take(&s.arena, wide)
	if t.integer() {
		w.ints.q = (*int8)(unsafe.Pointer(s.arena.take(cols)))
		w.ints.scale = s.arena.take(groups)
		w.ints.bias = (*int32)(unsafe.Pointer(s.arena.take(groups)))
	}
}

// each runs a task for every head; w are its matrices in integers.
func (t *decodeTask) each(s *Stream, heads task, w []quantProduct) {
	rows, scratch := len(t.list), t.whole.wide
	ns := rows * t.Heads * t.Rank * max(t.Nope, t.V) / t.dev.speed.flopsPerNs
	if t.integer() {
		t.whole.ints.shape(&w[0])
		ns, scratch = t.Heads*w[0].ns(t.dev, rows), max(t.dev.unit.scratch(&w[0], rows), piece(w[0].k))
	}
	s.each(heads, t.Heads, ns+t.kept.n*t.kept.wide/joinedPerNs, scratch)
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
	if !t.integer() {
		l.arena.clear()
		spare := l.arena.take(t.whole.wide)
		for i, row := range t.whole.index {
			t.absorb(l, t.latent(i, h), spare, int(row), h)
		}
		return
	}
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
	for i := range t.list {
		t.join(i, h)
	}
	if !t.integer() {
		l.arena.clear()
		spare := l.arena.take(t.whole.wide)
		for i, row := range t.whole.index {
			t.expand(l, t.latent(i, h), spare, int(row), h)
		}
		return
	}
	rows, v := len(t.list), &t.vq[h]
	for i := range rows {
		t.quantise(v, h*rows+i, t.latent(i, h))
	}
	out := quantOutput{base: t.result(0, h), stride: t.outStride, index: t.whole.index}
	v.multiply(t.dev, l, quantInput{quantRows: &t.whole.ints, first: h * rows}, out, rows, 0, v.tiles())
}

// join makes the weighted latents of a row and head of those that its stretches kept.
func (t *decodeTask) join(i, h int) {
	part := &t.parts[i*t.groups()+h/t.heads]
	if part.count == 0 {
		return
	}
	at := part.kept + h%t.heads
	total, state := t.kept.of(at, 1)
	for x := 1; x < part.count; x++ {
		acc, more := t.kept.of(at+x*part.n, 1)
		t.dev.joinRunning(&state[0], &more[0], total, acc, t.kept.wide)
	}
	t.dev.axpy.Scale(total, t.kept.wide, 1/state[0].sum)
	t.keep(total, t.latent(i, h))
}

// quantise writes row r of the integers for a product.
func (t *decodeTask) quantise(p *quantProduct, r int, x *float32) {
	q, scale, bias := t.whole.ints.row(r)
	t.dev.qrows.Quantize(x, q, scale, bias, p.groups(), p.steps)
}
