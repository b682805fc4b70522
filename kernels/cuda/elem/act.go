package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// The kernels of src/act.cu.
var (
	kScale       = launch.Named("kr_scale")
	kSoftcap     = launch.Named("kr_softcap")
	kActivate    = launch.Named("kr_activate")
	kWeighChosen = launch.Named("kr_weigh_chosen")
)

// Scale computes out = x * factor, both [T, N]; out may be x. With a factor of 1 it converts rows.
func Scale(l *launch.List, out, x launch.Mat, factor float32) {
	const op = "Scale"
	floats(op, "out", out, x.Rows, x.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(out, x)
	l.Add(kScale, pieces(op, x.Rows, x.Cols, f),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Cols), launch.F32(factor), launch.I32(f))
}

// Softcap computes x = limit * tanh(x / limit), x [T, N].
func Softcap(l *launch.List, x launch.Mat, limit float32) {
	const op = "Softcap"
	floats(op, "x", x, x.Rows, x.Cols)
	if !(limit > 0) {
		refuse(op, "limit %g", limit)
	}
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(x)
	l.Add(kSoftcap, pieces(op, x.Rows, x.Cols, f), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Cols), launch.F32(limit), launch.I32(f))
}

// Activate computes out = the activation of e for gate and up, element by element, all [T, N]; out may be
// gate or up.
func Activate(l *launch.List, out, gate, up launch.Mat, e *launch.Extra) {
	const op = "Activate"
	floats(op, "gate", gate, out.Rows, out.Cols)
	floats(op, "up", up, out.Rows, out.Cols)
	activate(l, op, out, gate, up, 1, e)
}

// ActivateJoined is Activate for out [T, N] and both [T, 2N], in which 8 columns of gate and 8 of up take turns, as the rows of joined weights do; N is a multiple of 8.
func ActivateJoined(l *launch.List, out, both launch.Mat, e *launch.Extra) {
	const op = "ActivateJoined"
	floats(op, "both", both, out.Rows, 2*out.Cols)
	if out.Cols%chunk != 0 {
		refuse(op, "out %v", out)
	}
	if out.Cols > 0 {
		activate(l, op, out, both, both.ColRange(chunk, both.Cols), 2, e)
	}
}

// activate launches kr_activate; spread is the number of chunks of gate and up for one of out.
func activate(l *launch.List, op string, out, gate, up launch.Mat, spread int, e *launch.Extra) {
	floats(op, "out", out, out.Rows, out.Cols)
	if out.Rows == 0 || out.Cols == 0 {
		return
	}
	act := e.Act()
	f := flags(out, gate, up)
	l.Add(kActivate, pieces(op, out.Rows, out.Cols, f),
		launch.P(out.At), launch.I32(out.Stride), launch.P(gate.At), launch.I32(gate.Stride), launch.P(up.At), launch.I32(up.Stride),
		launch.I32(out.Cols), launch.I32(spread), act[0], act[1], act[2], launch.F32(e.Cubic), launch.I32(f))
}

// WeighChosen multiplies weights [T, K] F32 with the factors [1, E] F32 of the chosen experts ids [T, K]
// I32, and orders each row of both anew: falling weights, then rising ids. Ids that are no expert keep
// their weight. K is at most 32.
func WeighChosen(l *launch.List, ids, weights, factors launch.Mat) {
	const op = "WeighChosen"
	typed(op, "ids", ids, tensor.I32, weights.Rows, weights.Cols)
	typed(op, "weights", weights, tensor.F32, weights.Rows, weights.Cols)
	typed(op, "factors", factors, tensor.F32, 1, factors.Cols)
	if weights.Cols > 32 {
		refuse(op, "%d experts of a row", weights.Cols)
	}
	if weights.Rows == 0 || weights.Cols == 0 {
		return
	}
	const perBlock = 4
	l.Add(kWeighChosen, rowBlocks((weights.Rows+perBlock-1)/perBlock, 32*perBlock),
		launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride), launch.I32(weights.Rows), launch.I32(weights.Cols),
		launch.P(factors.At), launch.I32(factors.Cols))
}
