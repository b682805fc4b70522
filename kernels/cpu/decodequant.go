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
	queries quantRows // [Heads*rows, padded Nope], by the head
	values  quantRows // [Heads*rows, padded Rank], weighted latents likewise
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
	room := piece(n*w.wide) + t.kept.room(wide)
	if t.integer() {
		room += quantRoom(&t.kq[0], n) + quantRoom(&t.vq[0], n)
	}
	s.arena.reset(room)
	w.latents = s.arena.take(n * w.wide)
	t.kept.take(&s.arena, wide)
	if t.integer() {
		w.queries.take(&s.arena, &t.kq[0], n)
		w.values.take(&s.arena, &t.vq[0], n)
	}
}

// each runs a task for every head; w are its matrices in integers.
func (t *decodeTask) each(s *Stream, heads task, w []quantProduct) {
	rows, scratch := len(t.list), t.whole.wide
	ns := rows * t.Heads * t.Rank * max(t.Nope, t.V) / t.dev.speed.flopsPerNs
	if t.integer() {
		ns, scratch = t.Heads*w[0].ns(t.dev, rows), t.stepScratch(w, rows)
	}
	s.each(heads, t.Heads, ns+t.kept.n*t.kept.wide/joinedPerNs, scratch)
}

// stepScratch is the scratch of a step of a head with matrices w.
func (t *decodeTask) stepScratch(w []quantProduct, rows int) int {
	return max(t.dev.unit.scratch(&w[0], rows), piece(w[0].k))
}

// quantRoom is the memory of n rows for a product, in float32 values.
func quantRoom(p *quantProduct, n int) int { return piece(n*p.k/4) + 2*piece(n*p.groups()) }

// take makes x n dense rows, as wide as a product wants them.
func (x *quantRows) take(a *arena, p *quantProduct, n int) {
	*x = quantRows{
		q: (*int8)(unsafe.Pointer(a.take(n * p.k / 4))), scale: a.take(n * p.groups()), bias: (*int32)(unsafe.Pointer(a.take(n * p.groups()))),
		qStride: p.k, scaleStride: p.groups(), biasStride: p.groups(), rows: n, k: p.k, group: p.steps * qrows.Block,
	}
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
		t.quantise(&t.whole.queries, k, h*rows+i, x)
	}
	out := quantOutput{base: t.latent(0, h), stride: t.Heads * t.whole.wide}
	k.multiply(t.dev, l, quantInput{quantRows: &t.whole.queries, first: h * rows}, out, rows, 0, k.tiles())
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
		t.quantise(&t.whole.values, v, h*rows+i, t.latent(i, h))
	}
	out := quantOutput{base: t.result(0, h), stride: t.outStride, index: t.whole.index}
	v.multiply(t.dev, l, quantInput{quantRows: &t.whole.values, first: h * rows}, out, rows, 0, v.tiles())
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
func (t *decodeTask) quantise(rows *quantRows, p *quantProduct, r int, x *float32) {
	q, scale, bias := rows.row(r)
	t.dev.qrows.Quantize(x, q, scale, bias, p.groups(), p.steps)
}

// decodeNear is all steps of some heads, for all rows: with few keys, loops would take longer to begin and end than to run.
type decodeNear decodeTask

// nearKeys is the most keys of all rows together for decodeNear, which reads them again for each group of heads.
const nearKeys = 8 * nearStretch

func (n *decodeNear) do(l *lane, i int) {
	t := (*decodeTask)(n)
	first, end := i*t.heads, min((i+1)*t.heads, t.Heads)
	for h := first; h < end; h++ {
		(*decodeAbsorb)(t).do(l, h)
	}
	for row := range t.list {
		t.do(l, row*t.groups()+i)
	}
	for h := first; h < end; h++ {
		(*decodeExpand)(t).do(l, h)
	}
}
