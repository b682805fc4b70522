package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/delta"
	"krater/kernels/device"
)

// Times on one core, in 1/16 ns: of a value that is gated, of one that a convolution's tap passes
// over, of one of a state that a token changes.
const (
	gateNs  = 8
	tapNs   = 3
	stateNs = 6
)

// gateTask multiplies rows by the sigmoid of others.
type gateTask struct {
	dev              *Device
	out, x           *float32
	oStride, xStride int
	cols             int
	rows             rowChunks
}

// Gate is out *= sigmoid(x), element by element, both [T, N] F32. Scratch per thread: N values.
func (d *Device) Gate(stream device.Stream, out, x device.Mat) {
	const op = "Gate"
	s := d.stream(op, stream)
	t := &s.gates
	*t = gateTask{dev: d, out: f32(op, "out", &out, out.Rows, out.Cols), x: f32(op, "x", &x, out.Rows, out.Cols),
		oStride: out.Stride, xStride: x.Stride, cols: out.Cols, rows: rowChunks{out.Rows}}
	if out.Cols > 0 {
		s.each(t, t.rows.count(), out.Rows*out.Cols*gateNs/16, out.Cols)
	}
}

func (t *gateTask) do(l *lane, i int) {
	l.arena.clear()
	factor := l.arena.take(t.cols)
	from, to := t.rows.of(i)
	for r := from; r < to; r++ {
		out := unsafe.Slice(rowAt(t.out, t.oStride, r), t.cols)
		t.dev.exp.Sigmoid(factor, rowAt(t.x, t.xStride, r), t.cols)
		for c, f := range unsafe.Slice(factor, t.cols) {
			out[c] *= f
		}
	}
}

// deltaTask has the arguments that all operators of gated DeltaNet take.
type deltaTask struct {
	device.DeltaNet
	dev   *Device
	spans []device.Span
}

// check holds sizes and spans against the rows of a batch, and those that are kept, rows of each
// sequence. It returns the rows of all spans.
func (t *deltaTask) check(op string, d *Device, spans []device.Span, p device.DeltaNet, batch, kept, rows int) (all int) {
	if p.KeyHeads < 1 || p.ValueHeads < p.KeyHeads || p.ValueHeads%p.KeyHeads != 0 || p.KeyDim < 1 || p.ValueDim < 1 || p.Taps < 1 || p.Taps > delta.MaxTaps ||
		!(p.Floor <= 0) || p.Floor < 0 && p.ByKeyHead {
		fail(op, "sizes %+v", p)
	}
	t.DeltaNet, t.dev, t.spans = p, d, spans
	for i := range spans {
		sp := &spans[i]
		if sp.Row < 0 || sp.Len < 0 || sp.Pos < 0 || sp.Row+sp.Len > batch || sp.Slot < 0 || sp.Slot >= kept/rows {
			fail(op, "span %d: rows %d to %d of %d at position %d in slot %d of %d", i, sp.Row, sp.Row+sp.Len, batch, sp.Pos, sp.Slot, kept/rows)
		}
		all += sp.Len
	}
	return all
}

// channels are consecutive channels: where they lie in the input and in the output.
type channels struct{ from, to, n int }

// convTask is the convolution. An item is a span and a part of its channels, so that one thread
// alone reads and writes the rows kept of them.
type convTask struct {
	deltaTask
	out, x, w, tail             *float32
	outStride, xStride, wStride int
}

// part is a part of the channels: those of a key head's queries, keys or inputs. There are three
// for each key head.
func (t *convTask) part(i int) channels {
	from, to, n := t.Queries(), i*t.KeyDim, t.KeyDim
	switch i / t.KeyHeads {
	case 1:
		from = t.Keys()
	case 2:
		from, n = t.Inputs(), t.Group()*t.ValueDim
		to = 2*t.KeyHeads*t.KeyDim + i%t.KeyHeads*n
	}
	return channels{from.At + i%t.KeyHeads*from.Step, to, n}
}

// Conv: out [T, Channels], x [T, Width], w [Taps, Channels] and tail [slots*Taps, Channels] F32.
// Scratch per thread: the rows kept of a part.
func (d *Device) Conv(stream device.Stream, out, x, w device.Mat, tail device.KV, in device.Spans, p device.DeltaNet) {
	const op = "Conv"
	s := d.stream(op, stream)
	t := &s.conv
	rows := t.check(op, d, in.List, p, x.Rows, tail.Rows, p.Taps)
	n := p.Channels()
	t.out, t.x = f32(op, "out", &out, x.Rows, n), f32(op, "x", &x, x.Rows, p.Width())
	t.w, t.tail = f32(op, "w", &w, p.Taps, n), f32(op, "tail", &tail.Mat, tail.Rows, n)
	if !tail.Dense() {
		fail(op, "tail is %s, stride %d", tail.Mat, tail.Stride)
	}
	t.outStride, t.xStride, t.wStride = out.Stride, x.Stride, w.Stride
	widest := max(p.KeyDim, p.Group()*p.ValueDim)
	s.each(t, len(in.List)*3*p.KeyHeads, rows*n*p.Taps*tapNs/16, piece(widest)*p.Taps)
	t.spans = nil
}

func (t *convTask) do(l *lane, item int) {
	parts := 3 * t.KeyHeads
	sp, c := &t.spans[item/parts], t.part(item%parts)
	l.arena.clear()
	old, taps, n := l.arena.take(c.n*t.Taps), t.Taps, t.Channels()
	x := l.taps[:taps]
	kept := func(pos int) *float32 { return shift(rowAt(t.tail, n, sp.Slot*taps+pos%taps), c.to) }
	for i := 1; i < taps; i++ { // in the order of positions
		copy(unsafe.Slice(shift(old, i*c.n), c.n), unsafe.Slice(kept(sp.Pos+i), c.n))
	}
	row := func(i int) *float32 { // of the span's i-th row, or of one before
		if i < 0 {
			return shift(old, (taps+i)*c.n)
		}
		return shift(rowAt(t.x, t.xStride, sp.Row+i), c.from)
	}
	for r := range sp.Len {
		for i := range x {
			x[i] = row(r + 1 - taps + i)
		}
		out := shift(rowAt(t.out, t.outStride, sp.Row+r), c.to)
		t.dev.delta.Conv(out, &x[0], shift(t.w, c.to), 4*t.wStride, taps, c.n)
		t.dev.silu(out, c.n)
	}
	clear(x)
	for r := max(0, sp.Len-taps); r < sp.Len; r++ {
		copy(unsafe.Slice(kept(sp.Pos+r), c.n), unsafe.Slice(row(r), c.n))
	}
}

// ones takes the place of up in silu(gate) * up.
var ones = func() (v [256]float32) {
	for i := range v {
		v[i] = 1
	}
	return v
}()

// ruleTask is the gated delta rule. An item is a span, a value head and some columns of its state:
// a thread passes all tokens of the span over them while they are in its cache.
type ruleTask struct {
	deltaTask
	out, x, ba, states           *float32
	outStride, xStride, baStride int
	decay, bias                  []float32
	pieces, width                int // of a head's columns
}

// Delta: out [T, Values], x [T, Channels], ba [T, Numbers], decay [1, ValueHeads], bias [1, ValueHeads*Rates], states
// [slots*StateRows, ValueDim], all F32. Scratch per thread: eight keys and a value.
func (d *Device) Delta(stream device.Stream, out, x, ba, decay, bias device.Mat, states device.KV, in device.Spans, p device.DeltaNet) {
	const op = "Delta"
	s := d.stream(op, stream)
	t := &s.rule
	rows := t.check(op, d, in.List, p, x.Rows, states.Rows, p.StateRows())
	t.out, t.x = f32(op, "out", &out, x.Rows, p.Values()), f32(op, "x", &x, x.Rows, p.Channels())
	t.ba, t.states = f32(op, "ba", &ba, x.Rows, p.Numbers()), f32(op, "states", &states.Mat, states.Rows, p.ValueDim)
	if !states.Dense() {
		fail(op, "states are %s, stride %d", states.Mat, states.Stride)
	}
	t.outStride, t.xStride, t.baStride = out.Stride, x.Stride, ba.Stride
	t.decay = unsafe.Slice(f32(op, "decay", &decay, 1, p.ValueHeads), p.ValueHeads)
	t.bias = unsafe.Slice(f32(op, "bias", &bias, 1, p.ValueHeads*p.Rates()), p.ValueHeads*p.Rates())
	ns := rows * p.StateRows() * p.ValueDim * stateNs / 16
	heads := len(in.List) * p.ValueHeads
	t.pieces, t.width = 1, p.ValueDim
	for s.shared(ns) && heads*t.pieces < 2*len(s.lanes) && t.width > 32 {
		t.width = (t.width/2 + 15) &^ 15
		t.pieces = (p.ValueDim + t.width - 1) / t.width
	}
	s.each(t, heads*t.pieces, ns, 8*piece(p.KeyDim)+piece(t.width))
	t.spans = nil
}

// deltaToken is a token as a head sees it: query and key of unit length, and how strongly it is written.
type deltaToken struct {
	q, k     *float32
	strength float32
	decay    float32  // of the whole state; 1 with decays
	decays   *float32 // [KeyDim] of the rows; room for them
	seen     *float32 // [KeyDim] the key by the decays; without them k
}

func (t *ruleTask) do(l *lane, item int) {
	column := item % t.pieces * t.width
	item /= t.pieces
	sp, h := &t.spans[item/t.ValueHeads], item%t.ValueHeads
	if sp.Len == 0 {
		return
	}
	l.arena.clear()
	var tokens [2]deltaToken // the one at hand and the next
	for i := range tokens {
		tokens[i] = deltaToken{q: l.arena.take(t.KeyDim), k: l.arena.take(t.KeyDim)}
		if tokens[i].seen = tokens[i].k; t.Floor < 0 {
			tokens[i].decays, tokens[i].seen = l.arena.take(t.KeyDim), l.arena.take(t.KeyDim)
		}
	}
	f, tile := t.dev.delta, &l.delta
	tile.S, tile.Stride = shift(t.states, ((sp.Slot*t.ValueHeads+h)*t.KeyDim)*t.ValueDim+column), 4*t.ValueDim
	tile.Rows, tile.Width = t.KeyDim, min(t.width, t.ValueDim-column)
	tile.Known = l.arena.take(t.width)
	t.token(&tokens[0], sp.Row, h)
	tile.K = tokens[0].seen
	f.Known(tile)
	column += h * t.ValueDim
	for r := range sp.Len {
		row, at, next := sp.Row+r, &tokens[r%2], &tokens[(r+1)%2]
		tile.Q, tile.K, tile.Next, tile.Decay, tile.Strength = at.q, at.k, next.seen, at.decay, at.strength
		if tile.Decays, tile.DecayStep = &tile.Decay, 0; at.decays != nil {
			tile.Decays, tile.DecayStep = at.decays, 4
		}
		tile.V, tile.Out = shift(rowAt(t.x, t.xStride, row), 2*t.KeyHeads*t.KeyDim+column), shift(rowAt(t.out, t.outStride, row), column)
		if r+1 == sp.Len {
			f.Step(tile)
			break
		}
		t.token(next, row+1, h)
		f.StepNext(tile)
	}
	*tile = delta.Tile{}
}

// token makes what a value head sees of a row.
func (t *ruleTask) token(to *deltaToken, row, h int) {
	x := shift(rowAt(t.x, t.xStride, row), h/t.Group()*t.KeyDim)
	t.unit(to.q, x, 1/math.Sqrt(float64(t.KeyDim)))
	t.unit(to.k, shift(x, t.KeyHeads*t.KeyDim), 1)
	t.numbers(to, row, h)
}

// unit is x by a factor over its length.
func (t *ruleTask) unit(out, x *float32, by float64) {
	n := t.KeyDim
	copy(unsafe.Slice(out, n), unsafe.Slice(x, n))
	t.dev.axpy.Scale(out, n, float32(by/math.Sqrt(float64(t.dev.norm.SumSquares(x, n))+1e-6)))
}

// numbers sets how much of the state stays, and how strongly the token is written.
func (t *ruleTask) numbers(to *deltaToken, row, h int) {
	n := t.Rates()
	x, head, j := unsafe.Slice(rowAt(t.ba, t.baStride, row), t.Numbers()), h/t.Group(), h%t.Group()
	b, a := t.Strengths(), t.DeltaNet.Decays()
	to.strength = float32(1 / (1 + math.Exp(-float64(x[b.At+head*b.Step+j]))))
	rates, bias := x[a.At+head*a.Step+j*n:][:n], t.bias[h*n:][:n]
	if t.Floor == 0 {
		v := float64(rates[0]) + float64(bias[0])
		softplus := max(v, 0) + math.Log1p(math.Exp(-math.Abs(v)))
		to.decay = float32(math.Exp(float64(t.decay[h]) * softplus))
		return
	}
	to.decay = 1
	decays, seen, key := unsafe.Slice(to.decays, n), unsafe.Slice(to.seen, n), unsafe.Slice(to.k, n)
	for i, v := range rates {
		decays[i] = -t.decay[h] * (v + bias[i])
	}
	t.dev.exp.Sigmoid(to.decays, to.decays, n)
	t.dev.exp.ExpSum(to.decays, to.decays, n, t.Floor, 0)
	for i, k := range key {
		seen[i] = k * decays[i]
	}
}

// gatedNormTask norms the value heads of rows and multiplies them by silu of their gates.
type gatedNormTask struct {
	deltaTask
	out, x           *float32
	oStride, xStride int
	w                unsafe.Pointer
	bf16             bool
	eps              float32
	rows             headChunks
}

// GatedNorm: out [T, Values] and x [T, Width] F32, w [1, ValueDim] BF16 or F32. Scratch per thread: ValueDim values.
func (d *Device) GatedNorm(stream device.Stream, out, x, w device.Mat, eps float32, p device.DeltaNet) {
	const op = "GatedNorm"
	s := d.stream(op, stream)
	t := &s.gatedNorm
	t.check(op, d, nil, p, x.Rows, 1, 1)
	t.out, t.x = f32(op, "out", &out, x.Rows, p.Values()), f32(op, "x", &x, x.Rows, p.Width())
	t.w, t.bf16 = weight(op, "w", &w, 1, p.ValueDim)
	t.oStride, t.xStride, t.eps = out.Stride, x.Stride, eps
	ns := x.Rows * p.Values() * (normNs + gateNs) / 16
	t.rows = s.cutHeads(x.Rows, p.ValueHeads, ns)
	s.each(t, t.rows.count(), ns, piece(p.ValueDim))
}

func (t *gatedNormTask) do(l *lane, i int) {
	n, z, f := t.ValueDim, t.Gates(), t.dev.norm
	l.arena.clear()
	factor := l.arena.take(n)
	from, to, first, end := t.rows.of(i)
	for r := from; r < to; r++ {
		for h := first; h < end; h++ {
			out := shift(rowAt(t.out, t.oStride, r), h*n)
			scale := rmsScale(f.SumSquares(out, n), n, t.eps)
			if t.bf16 {
				f.MulBF16(out, out, (*uint16)(t.w), n, scale)
			} else {
				f.MulF32(out, out, (*float32)(t.w), n, scale)
			}
			gate := shift(rowAt(t.x, t.xStride, r), z.At+h/t.Group()*z.Step+h%t.Group()*n)
			if !t.SigmoidGate {
				t.dev.exp.SiluMul(out, gate, out, n)
				continue
			}
			t.dev.exp.Sigmoid(factor, gate, n)
			for c, f := range unsafe.Slice(factor, n) {
				unsafe.Slice(out, n)[c] *= f
			}
		}
	}
}
