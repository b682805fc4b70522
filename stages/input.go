package stages

import "krater/kernels/device"

// Products are the operators of a linear layer in any precision.
type Products interface {
	MatMul(s device.Stream, out, x, w device.Mat)
	QuantizeRows(s device.Stream, out device.QRows, x device.Mat)
	MatMulQ(s device.Stream, out device.Mat, x device.QRows, w device.QMat)
}

// tileProducts are of a device whose integers are tiles.
type tileProducts interface {
	MatMulT(s device.Stream, out, x device.Mat, w device.Tiles)
}

// Input is rows that linear layers multiply: as they are and, for layers kept as
// integers, quantised. They are quantised at most once, whatever the number of
// layers that take them.
type Input struct {
	X device.Mat
	// Q has room for the rows as integers, in groups of the layers that take them;
	// absent where no layer is kept as integers.
	Q         device.QRows
	quantized bool
}

// NewInput is an input whose rows are x; q has room for at least as many.
func NewInput(x device.Mat, q device.QRows) Input {
	if !q.Zero() {
		q = q.RowRange(0, x.Rows)
	}
	return Input{X: x, Q: q}
}

// RowRange is the first n rows, not quantised yet.
func (in *Input) RowRange(n int) Input { return NewInput(in.X.RowRange(0, n), in.Q) }

// Changed says that the rows have other values now.
func (in *Input) Changed() { in.quantized = false }

// Quantized are the rows as integers, made now if they are not there yet. A
// stream that did not make them must have passed the one that did.
func (in *Input) Quantized(s device.Stream, ops Products) device.QRows {
	if !in.quantized {
		ops.QuantizeRows(s, in.Q, in.X)
		in.quantized = true
	}
	return in.Q
}

// Mul is out = rows * w^T.
func (in *Input) Mul(s device.Stream, ops Products, out device.Mat, w *device.Weight) {
	if w.Integer() {
		ops.MatMulQ(s, out, in.Quantized(s, ops), w.Q)
		return
	}
	if !w.T.Zero() {
		ops.(tileProducts).MatMulT(s, out, in.X, w.T)
		return
	}
	ops.MatMul(s, out, in.X, w.F)
}
