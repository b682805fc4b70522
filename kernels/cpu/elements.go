package cpu

import "krater/kernels/device"

// elementTask computes an operator on single elements, in place: rows in pieces of elementCols columns.
type elementTask struct {
	dev            *Device
	op             device.Kind // OpActivate, OpScale or OpSoftcap
	x, up          *float32
	stride, upward int // of x and of up
	cols, pieces   int
	act            extra
	factor         float32
}

const elementCols = 4096

// elementNs is the time of an element on one core, in 1/16 ns.
var elementNs = map[device.Kind]int{device.OpActivate: 12, device.OpScale: 2, device.OpSoftcap: 8}

// elements computes the task on the rows of x.
func (d *Device) elements(s *Stream, name string, x *device.Mat, t elementTask) {
	t.dev, t.x, t.stride, t.cols = d, f32(name, "x", x, x.Rows, x.Cols), x.Stride, x.Cols
	t.pieces = (x.Cols + elementCols - 1) / elementCols
	s.elements = t
	s.each(&s.elements, x.Rows*t.pieces, x.Rows*x.Cols*elementNs[t.op]/16, 0)
}

func (t *elementTask) do(_ *lane, i int) {
	row, at := i/t.pieces, i%t.pieces*elementCols
	n, x := min(elementCols, t.cols-at), shift(rowAt(t.x, t.stride, row), at)
	switch t.op {
	case device.OpActivate:
		t.act.activate(t.dev, x, x, shift(rowAt(t.up, t.upward, row), at), n)
	case device.OpScale:
		t.dev.axpy.Scale(x, n, t.factor)
	case device.OpSoftcap:
		t.dev.exp.Softcap(x, n, t.factor)
	}
}

// Activate is x = act(x, up), element by element, both [T, N] F32.
func (d *Device) Activate(stream device.Stream, x, up device.Mat, act device.Activation) {
	const op = "Activate"
	t := elementTask{op: device.OpActivate, up: f32(op, "up", &up, x.Rows, x.Cols), upward: up.Stride}
	t.act.activation(op, act)
	d.elements(d.stream(op, stream), op, &x, t)
}

// Scale is x *= factor, x [T, N] F32.
func (d *Device) Scale(stream device.Stream, x device.Mat, factor float32) {
	d.elements(d.stream("Scale", stream), "Scale", &x, elementTask{op: device.OpScale, factor: factor})
}

// Softcap is x = limit * tanh(x / limit), x [T, N] F32.
func (d *Device) Softcap(stream device.Stream, x device.Mat, limit float32) {
	const op = "Softcap"
	if !(limit > 0) {
		fail(op, "limit %g", limit)
	}
	d.elements(d.stream(op, stream), op, &x, elementTask{op: device.OpSoftcap, factor: limit})
}
