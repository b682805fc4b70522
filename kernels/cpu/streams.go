package cpu

import (
	"math"
	"unsafe"

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
	rows                               rowChunks
}

// streamNs is the time of a value of a stream on one core, in 1/16 ns.
const streamNs = 8

// run runs the task over the rows of a batch; values is how many there are in a row.
func (t *streamTask) run(s *Stream, rows, values int) {
	t.rows = rowChunks{rows}
	if values > 0 {
		s.each(t, t.rows.count(), rows*values*streamNs/16, 0)
	}
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

func (t *streamTask) do(_ *lane, i int) {
	from, to := t.rows.of(i)
	for r := from; r < to; r++ {
		out := rowAt(t.out, t.oStride, r)
		switch t.kind {
		case device.OpSigmoid:
			t.activate(out)
		case device.OpCollapse:
			t.collapse(out, r)
		case device.OpSpread:
			t.spread(out, r)
		default:
			t.gates(out, r)
		}
	}
}

func (t *streamTask) activate(row *float32) {
	if t.act.In != 1 {
		t.dev.axpy.Scale(row, t.cols, t.act.In)
	}
	if t.act.Silu {
		t.dev.silu(row, t.cols)
	} else {
		t.dev.exp.Sigmoid(row, row, t.cols)
	}
	if t.act.Out != 1 {
		t.dev.axpy.Scale(row, t.cols, t.act.Out)
	}
}

// silu is x * sigmoid(x) in place.
func (d *Device) silu(x *float32, n int) {
	for at := 0; at < n; at += len(ones) {
		p := shift(x, at)
		d.exp.SiluMul(p, p, &ones[0], min(len(ones), n-at))
	}
}

func (t *streamTask) collapse(row *float32, r int) {
	out := unsafe.Slice(row, t.cols)
	clear(out)
	for s := range t.streams {
		x := unsafe.Slice(shift(rowAt(t.x, t.xStride, r), s*t.cols), t.cols)
		w := unsafe.Slice(shift(rowAt(t.a, t.aStride, r), s*t.cols), t.cols)
		for c, v := range x {
			out[c] += v * w[c]
		}
	}
}

func (t *streamTask) spread(row *float32, r int) {
	x, weights := unsafe.Slice(rowAt(t.x, t.xStride, r), t.cols), unsafe.Slice(rowAt(t.a, t.aStride, r), t.streams)
	for s, w := range weights {
		out := unsafe.Slice(shift(row, s*t.cols), t.cols)
		if t.base == nil {
			for c, v := range x {
				out[c] = w * v
			}
			continue
		}
		base := unsafe.Slice(shift(rowAt(t.base, t.bStride, r), s*t.cols), t.cols)
		for c, v := range x {
			out[c] = base[c] + w*v
		}
	}
}

func (t *streamTask) gates(row *float32, r int) {
	for s := range t.streams {
		x := unsafe.Slice(shift(rowAt(t.x, t.xStride, r), s*t.cols), t.cols)
		y := unsafe.Slice(shift(rowAt(t.a, t.aStride, r), s*t.cols), t.cols)
		sum := 0.0
		for c, v := range x {
			sum += float64(v) * float64(y[c])
		}
		sum /= math.Sqrt(float64(t.cols))
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
	if p.Taps < 1 || p.Step < 1 || !tail.Dense() {
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

func (t *tapTask) do(_ *lane, item int) {
	sp, first := &t.spans[item/t.parts], item%t.parts*tapChannels
	n, reach := min(tapChannels, t.cols-first), t.Reach()
	kept := func(pos int) *float32 { return shift(rowAt(t.tail, t.cols, sp.Slot*reach+pos%reach), first) }
	for r := range sp.Len {
		to := shift(rowAt(t.out, t.outStride, sp.Row+r), first)
		out := unsafe.Slice(to, n)
		clear(out)
		for k := t.Taps - 1; k >= 0; k-- {
			back := k * t.Step
			if back > sp.Pos+r {
				continue
			}
			from := kept(sp.Pos + r - back)
			if back <= r {
				from = shift(rowAt(t.x, t.xStride, sp.Row+r-back), first)
			}
			w, x := unsafe.Slice(shift(rowAt(t.w, t.wStride, t.Taps-1-k), first), n), unsafe.Slice(from, n)
			for c, v := range x {
				out[c] += w[c] * v
			}
		}
		t.dev.silu(to, n)
	}
	for r := max(0, sp.Len-reach); r < sp.Len; r++ {
		copy(unsafe.Slice(kept(sp.Pos+r), n), unsafe.Slice(shift(rowAt(t.x, t.xStride, sp.Row+r), first), n))
	}
}
