package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/delta"
	"krater/kernels/device"
)

// streamTask has the arguments of the operators on several residual streams.
type streamTask struct {
	dev                                *Device
	kind                               device.Kind
	out, x, a, base                    *float32
	oStride, xStride, aStride, bStride int
	streams, cols                      int // cols: of a stream
	act                                device.Sigmoid
	rows                               colPieces
}

// streamNs is the time of a value of a stream on one core, in 1/16 ns.
const streamNs = 8

// run runs the task over the rows of a batch; values is how many there are in a row.
func (t *streamTask) run(s *Stream, rows, values int) {
	if values == 0 {
		return
	}
	ns := rows * values * streamNs / 16
	if t.rows = s.cutCols(rows, t.cols, ns); t.kind == device.OpStreamGates { // whose result is a sum over the columns
		t.rows = colPieces{rowChunks{rows}, t.cols, 1, t.cols}
	}
	s.each(t, t.rows.count(), ns, 0)
}

// Sigmoid: x [T, N] F32.
func (d *Device) Sigmoid(stream device.Stream, x device.Mat, p device.Sigmoid) {
	const op = "Sigmoid"
	s := d.stream(op, stream)
	s.streams = streamTask{dev: d, kind: device.OpSigmoid, out: f32(op, "x", &x, x.Rows, x.Cols), oStride: x.Stride, cols: x.Cols, act: p}
	s.streams.run(s, x.Rows, x.Cols)
}

// Collapse: out [T, H], x [T, n*H] F32, weights [T, n*H], [T, n] or absent.
func (d *Device) Collapse(stream device.Stream, out, x, weights device.Mat) {
	const op = "Collapse"
	s := d.stream(op, stream)
	n := streamsOf(op, &x, out.Cols)
	if weights.Zero() || weights.Cols != x.Cols {
		d.collapseWhole(s, &out, &x, &weights)
		return
	}
	s.streams = streamTask{dev: d, kind: device.OpCollapse, streams: n, cols: out.Cols,
		out: f32(op, "out", &out, x.Rows, out.Cols), x: f32(op, "x", &x, x.Rows, x.Cols), a: f32(op, "weights", &weights, x.Rows, x.Cols),
		oStride: out.Stride, xStride: x.Stride, aStride: weights.Stride}
	s.streams.run(s, x.Rows, x.Cols)
}

// Spread: out [T, n*H], x [T, H], weights [T, n] F32; base [T, n*H] F32 or absent. With base, weights may be [T, n+n*n].
func (d *Device) Spread(stream device.Stream, out, x, weights, base device.Mat) {
	const op = "Spread"
	s := d.stream(op, stream)
	n := streamsOf(op, &out, x.Cols)
	if weights.Cols != n {
		d.spreadMixed(s, &out, &x, &weights, &base)
		return
	}
	s.streams = streamTask{dev: d, kind: device.OpSpread, streams: n, cols: x.Cols,
		out: f32(op, "out", &out, x.Rows, out.Cols), x: f32(op, "x", &x, x.Rows, x.Cols), a: f32(op, "weights", &weights, x.Rows, n),
		oStride: out.Stride, xStride: x.Stride, aStride: weights.Stride, bStride: base.Stride}
	if !base.Zero() {
		s.streams.base = f32(op, "base", &base, x.Rows, out.Cols)
	}
	s.streams.run(s, x.Rows, out.Cols)
}

// StreamGates: out [T, n], x and y [T, n*H] F32.
func (d *Device) StreamGates(stream device.Stream, out, x, y device.Mat) {
	const op = "StreamGates"
	s := d.stream(op, stream)
	if out.Cols < 1 || x.Cols%out.Cols != 0 {
		fail(op, "out is %s, x is %s", out, x)
	}
	s.streams = streamTask{dev: d, kind: device.OpStreamGates, streams: out.Cols, cols: x.Cols / out.Cols,
		out: f32(op, "out", &out, x.Rows, out.Cols), x: f32(op, "x", &x, x.Rows, x.Cols), a: f32(op, "y", &y, x.Rows, x.Cols),
		oStride: out.Stride, xStride: x.Stride, aStride: y.Stride}
	s.streams.run(s, x.Rows, x.Cols)
}

// streamsOf is the number of streams of h values in the rows of m.
func streamsOf(op string, m *device.Mat, h int) int {
	if h < 1 || m.Cols%h != 0 {
		fail(op, "%s has no streams of %d", *m, h)
	}
	return m.Cols / h
}

func (t *streamTask) do(l *lane, i int) {
	from, to, at, n := t.rows.of(i)
	for r := from; r < to; r++ {
		out := rowAt(t.out, t.oStride, r)
		switch t.kind {
		case device.OpSigmoid:
			t.activate(shift(out, at), n)
		case device.OpCollapse:
			t.collapse(l, shift(out, at), r, at, n)
		case device.OpSpread:
			t.spread(l, out, r, at, n)
		default:
			t.gates(out, r)
		}
	}
}

func (t *streamTask) activate(row *float32, n int) {
	if t.act.In != 1 {
		t.dev.axpy.Scale(row, n, t.act.In)
	}
	if t.act.Silu {
		t.dev.silu(row, n)
	} else {
		t.dev.exp.Sigmoid(row, row, n)
	}
	if t.act.Out != 1 {
		t.dev.axpy.Scale(row, n, t.act.Out)
	}
}

// silu is x * sigmoid(x) in place.
func (d *Device) silu(x *float32, n int) {
	for at := 0; at < n; at += len(ones) {
		p := shift(x, at)
		d.exp.SiluMul(p, p, &ones[0], min(len(ones), n-at))
	}
}

// streamPiece is how many values of a stream the sum over more than delta.MaxTaps streams is made of at once.
const streamPiece = 256

// collapse makes n columns from at on of row r, to row.
func (t *streamTask) collapse(l *lane, row *float32, r, at, n int) {
	x, w, kernel := shift(rowAt(t.x, t.xStride, r), at), shift(rowAt(t.a, t.aStride, r), at), t.dev.delta.Conv
	if t.streams <= delta.MaxTaps {
		for s := range t.streams {
			l.taps[s] = shift(x, s*t.cols)
		}
		kernel(row, &l.taps[0], w, 4*t.cols, t.streams, n)
		clear(l.taps[:t.streams])
		return
	}
	for from := 0; from < n; from += streamPiece {
		some, to := min(streamPiece, n-from), shift(row, from)
		clearF32(to, some)
		for s := range t.streams {
			var product [streamPiece]float32
			l.taps[0] = shift(x, s*t.cols+from)
			kernel(&product[0], &l.taps[0], shift(w, s*t.cols+from), 0, 1, some)
			t.dev.axpy.Add(to, &product[0], some)
		}
	}
	l.taps[0] = nil
}

// spread makes n columns from at on of each stream of row r, which begins at row.
func (t *streamTask) spread(l *lane, row *float32, r, at, n int) {
	for s := range t.streams {
		to := shift(row, s*t.cols+at)
		switch base := t.base; {
		case base == nil:
			clearF32(to, n)
		case base != t.out:
			copy(unsafe.Slice(to, n), unsafe.Slice(shift(rowAt(base, t.bStride, r), s*t.cols+at), n))
		}
	}
	weights := rowAt(t.a, t.aStride, r)
	l.axpy.W, l.axpy.N, l.axpy.Width = unsafe.Pointer(shift(rowAt(t.x, t.xStride, r), at)), 1, n
	for s := 0; s < t.streams; s += axpy.Rows {
		some := min(axpy.Rows, t.streams-s)
		for i := range some {
			l.axpy.P[i], l.axpy.Acc[i] = shift(weights, s+i), shift(row, (s+i)*t.cols+at)
		}
		t.dev.axpy.F32[some](&l.axpy)
	}
}

// gates sums in float64: what is left of large products may be small, and its root is not.
func (t *streamTask) gates(row *float32, r int) {
	for s := range t.streams {
		x := unsafe.Slice(shift(rowAt(t.x, t.xStride, r), s*t.cols), t.cols)
		y := unsafe.Slice(shift(rowAt(t.a, t.aStride, r), s*t.cols), t.cols)
		var sums [4]float64 // chains that do not wait for each other
		c := 0
		for ; c+4 <= len(x); c += 4 {
			for i := range sums {
				sums[i] += float64(x[c+i]) * float64(y[c+i])
			}
		}
		for ; c < len(x); c++ {
			sums[0] += float64(x[c]) * float64(y[c])
		}
		sum := (sums[0] + sums[1] + sums[2] + sums[3]) / math.Sqrt(float64(t.cols))
		gate := 0.0
		if sum != 0 {
			gate = math.Copysign(math.Sqrt(max(math.Abs(sum), 1e-6)), sum)
		}
		*shift(row, s) = float32(gate)
	}
}

// tapTask is the convolution of a table of n-grams. An item is a span and some channels, so that
// one thread alone reads and writes the rows kept of them.
type tapTask struct {
	device.TapConv
	dev                         *Device
	out, x, w, tail             *float32
	outStride, xStride, wStride int
	cols, parts                 int
	spans                       []device.Span
}

// tapChannels is the channels of an item.
const tapChannels = 256

// TapConv: out and x [T, C], w [Taps, C] and tail [slots*Reach, C] F32. x and out may not be the same.
func (d *Device) TapConv(stream device.Stream, out, x, w device.Mat, tail device.KV, in device.Spans, p device.TapConv) {
	const op = "TapConv"
	s := d.stream(op, stream)
	if p.Taps < 1 || p.Taps > delta.MaxTaps || p.Step < 1 || !tail.Dense() {
		fail(op, "sizes %+v, tail is %s, stride %d", p, tail.Mat, tail.Stride)
	}
	rows := checkSpans(op, in.List, x.Rows, tail.Rows/p.Reach())
	s.taps = tapTask{TapConv: p, dev: d, cols: x.Cols, parts: (x.Cols + tapChannels - 1) / tapChannels, spans: in.List,
		out: f32(op, "out", &out, x.Rows, x.Cols), x: f32(op, "x", &x, x.Rows, x.Cols), w: f32(op, "w", &w, p.Taps, x.Cols),
		tail: f32(op, "tail", &tail.Mat, tail.Rows, x.Cols), outStride: out.Stride, xStride: x.Stride, wStride: w.Stride}
	s.each(&s.taps, len(in.List)*s.taps.parts, rows*x.Cols*p.Taps*streamNs/16, 0)
	s.taps.spans = nil
}

// checkSpans holds spans against the rows of a batch and the slots of what is kept. It returns their rows.
func checkSpans(op string, spans []device.Span, batch, slots int) (rows int) {
	for i := range spans {
		sp := &spans[i]
		if sp.Row < 0 || sp.Len < 0 || sp.Pos < 0 || sp.Len > batch || sp.Row > batch-sp.Len || sp.Slot < 0 || sp.Slot >= slots {
			fail(op, "span %d: rows %d to %d of %d at position %d in slot %d of %d", i, sp.Row, sp.Row+sp.Len, batch, sp.Pos, sp.Slot, slots)
		}
		rows += sp.Len
	}
	return rows
}

func (t *tapTask) do(l *lane, item int) {
	sp, first := &t.spans[item/t.parts], item%t.parts*tapChannels
	n, reach := min(tapChannels, t.cols-first), t.Reach()
	kept := func(pos int) *float32 { return shift(rowAt(t.tail, t.cols, sp.Slot*reach+pos%reach), first) }
	for r := range sp.Len {
		taps := min(t.Taps, (sp.Pos+r)/t.Step+1) // that are not before the start: the last ones
		for i := range taps {
			back := (taps - 1 - i) * t.Step
			if l.taps[i] = kept(sp.Pos + r - back); back <= r {
				l.taps[i] = shift(rowAt(t.x, t.xStride, sp.Row+r-back), first)
			}
		}
		to := shift(rowAt(t.out, t.outStride, sp.Row+r), first)
		t.dev.delta.Conv(to, &l.taps[0], shift(rowAt(t.w, t.wStride, t.Taps-taps), first), 4*t.wStride, taps, n)
		t.dev.silu(to, n)
	}
	clear(l.taps[:])
	for r := max(0, sp.Len-reach); r < sp.Len; r++ {
		copy(unsafe.Slice(kept(sp.Pos+r), n), unsafe.Slice(shift(rowAt(t.x, t.xStride, sp.Row+r), first), n))
	}
}
