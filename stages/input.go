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

// Norms is the operator that makes rows for linear layers.
type Norms interface {
	RMSNorm(s device.Stream, out, x, w device.Mat, eps float32)
}

// NormProducts are of a device that norms few rows where a product reads them, with the
// bits of RMSNorm.
type NormProducts interface {
	// Norms reports whether it does so for so many rows.
	Norms(rows int) bool
	// NormMatMul is out = RMSNorm(x) * w^T; in [T, K] is room for the normed rows, and
	// may be x.
	NormMatMul(s device.Stream, out, in, x, norm device.Mat, eps float32, w *device.Weight)
}

// AddProducts are of a device that adds a product to the residual stream where it is
// made.
type AddProducts interface {
	// Adds reports whether it does so for so many rows of s.
	Adds(s device.Stream, rows int) bool
	// AddMatMul is x [T, N] F32 += in * w^T; delta [T, N] is room for the product.
	AddMatMul(s device.Stream, x, delta, in device.Mat, w *device.Weight)
}

// FormOps are of a device that may compute generated rows in another way than a prompt's.
type FormOps interface {
	// Generated says how many of the rows that operators of s will get are generated ones,
	// which come first.
	Generated(s device.Stream, rows int)
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
	unmade    unmade
}

// unmade is what rows are still to be made of: RMSNorm(of) by the weight norm [1, H].
type unmade struct {
	of, norm device.Mat
	eps      float32
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

// Norm makes the rows RMSNorm(of) by norm [1, H]; of may be the rows themselves. A device
// that norms rows where it reads them (NormProducts) makes them no sooner than somebody
// else needs them: Made.
func (in *Input) Norm(s device.Stream, ops Norms, of, norm device.Mat, eps float32) {
	in.Changed()
	in.unmade = unmade{of, norm, eps}
	if n, ok := ops.(NormProducts); !ok || !n.Norms(in.X.Rows) {
		in.Made(s, ops)
	}
}

// Made has the rows in X.
func (in *Input) Made(s device.Stream, ops Norms) {
	if of, norm, eps, ok := in.Take(); ok {
		ops.RMSNorm(s, in.X, of, norm, eps)
	}
}

// Take is for who makes the rows by himself, where ok says that they are not there yet:
// X = RMSNorm(of) by norm.
func (in *Input) Take() (of, norm device.Mat, eps float32, ok bool) {
	u := in.unmade
	in.unmade = unmade{}
	return u.of, u.norm, u.eps, !u.of.Zero()
}

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
	if u := &in.unmade; !u.of.Zero() {
		ops.(NormProducts).NormMatMul(s, out, in.X, u.of, u.norm, u.eps, w)
		return
	}
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

// AddMul adds rows * w^T to the residual stream: at once, or as the pending Delta, which a
// probe always finds there.
func (st *State) AddMul(s device.Stream, ops Products, in *Input, w *device.Weight, probe Probe) {
	if a, ok := ops.(AddProducts); ok && probe == nil && a.Adds(s, st.T) {
		a.AddMatMul(s, st.Hidden, st.Delta, in.X, w)
		return
	}
	in.Mul(s, ops, st.Delta, w)
	st.Pending = true
}
