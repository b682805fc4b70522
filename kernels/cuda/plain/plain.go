// Package plain launches the matrix kernels that take every shape and type: one warp per output,
// float32 sums. The fast families are compared with them, and they run the shapes that the fast
// ones refuse.
package plain

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kMatMul = launch.Named("kr_plain_matmul")
	kGateUp = launch.Named("kr_plain_gate_up")
	kDown   = launch.Named("kr_plain_down")
)

const (
	warpsPerBlock = 8
	maxArgs       = 29
)

// weightKind as the kernels number it.
const (
	rowsF32 = iota
	rowsBF16
	tilesInt4
	tilesInt8
	tilesInt3
)

var weightKinds = map[*tensor.Encoding]int{tensor.INT4: tilesInt4, tensor.INT8: tilesInt8, tensor.INT3: tilesInt3}

// MatMul computes out [T, N] = x [T, K] * transposed w [N, K]. Activations are F32 or BF16, each
// as its Mat says; w is rows of F32 or BF16, or tiles.
func MatMul(l *launch.List, out, x launch.Mat, w launch.Weight) {
	const op = "plain MatMul"
	t := x.Rows
	if out.Rows != t || out.Cols != w.Rows() || x.Cols != w.Cols() {
		refuse(op, "out %v, x %v, w [%d, %d]", out, x, w.Rows(), w.Cols())
	}
	weight := weightArgs(op, &w)
	if t == 0 {
		return
	}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(op, out), launch.I32(out.Stride),
		launch.P(x.At), wide(op, x), launch.I32(x.Stride), launch.I32(t))
	l.Add(kMatMul, config(t*w.Rows()), append(args, weight[:]...)...)
}

// ScratchBytes returns the size of h for rows rows of a network of the given width, with
// activations of type dt.
func ScratchBytes(rows, width int, dt tensor.DType) int { return rows * width * dt.Size() }

// FFN computes out [T, H] = down(act(gate x, up x)), with the biases and the activation of e. w13 [2F, H]
// is gate's rows, then up's (or joined tiles), w2 [H, F]; h is ScratchBytes(T, F, x.DType) of scratch.
func FFN(l *launch.List, out launch.Mat, h launch.Ptr, x launch.Mat, w13, w2 launch.Weight, e launch.Extra) {
	network("plain FFN", l, out, h, x, launch.Bank{Experts: 1, W13: w13, W2: w2, Extra: e}, 0, 1)
}

// Experts runs every row of x [T, H] through its K experts, with the bank's biases and activation. Row t*K+k of y [T*K, H] is the output
// of expert ids[t, k] (I32 [T, K], read on the GPU), or zeros if there is no such expert (below
// 0, or not below bank.Experts). Rows of experts that bank.Map leaves out are unchanged. h is
// ScratchBytes(T*K, F, x.DType) of scratch.
func Experts(l *launch.List, y launch.Mat, h launch.Ptr, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	const op = "plain Experts"
	if ids.DType != tensor.I32 || ids.Rows != x.Rows || !ids.Dense() || ids.Cols < 1 {
		refuse(op, "ids %v for x %v", ids, x)
	}
	network(op, l, y, h, x, bank, ids.At, ids.Cols)
}

func network(op string, l *launch.List, y launch.Mat, h launch.Ptr, x launch.Mat, b launch.Bank, ids launch.Ptr, topK int) {
	slots, hidden, width := x.Rows*topK, b.W13.Cols(), b.W2.Cols()
	switch {
	case b.W13.Rows() != 2*width || b.W2.Rows() != hidden || width < 1:
		refuse(op, "w13 [%d, %d], w2 [%d, %d]", b.W13.Rows(), hidden, b.W2.Rows(), width)
	case x.Cols != hidden || y.Cols != hidden || y.Rows != slots:
		refuse(op, "y %v, x %v, %d experts a row of hidden size %d", y, x, topK, hidden)
	case b.W2.A.Joined:
		refuse(op, "w2 is joined")
	case b.Experts < 1:
		refuse(op, "no experts")
	}
	w13, w2 := weightArgs(op, &b.W13), weightArgs(op, &b.W2)
	if slots == 0 {
		return
	}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(h), wide(op, x), launch.P(x.At), launch.I32(x.Stride), launch.I32(slots), launch.I32(topK),
		launch.P(ids), launch.I32(b.Experts), launch.P(b.Map), launch.I64(b.Step), launch.I64(b.ScaleStep),
		launch.P(b.B13), launch.I64(b.BiasStep))
	act := b.Act()
	args = append(append(args, act[:]...), launch.F32(b.Cubic))
	l.Add(kGateUp, config(slots*width), append(args, w13[:]...)...)
	args = append(args[:0],
		launch.P(y.At), wide(op, y), launch.I32(y.Stride), launch.P(h), wide(op, x), launch.I32(slots),
		launch.P(ids), launch.I32(b.Experts), launch.P(b.Map), launch.I64(b.Step2), launch.I64(b.ScaleStep2),
		launch.P(b.B2), launch.I64(b.BiasStep))
	l.Add(kDown, config(slots*hidden), append(args, w2[:]...)...)
}

// weightArgs are the nine arguments of a weight, in the kernels' order.
func weightArgs(op string, w *launch.Weight) [9]launch.Arg {
	a, f := &w.A, &w.F
	if a.Zero() {
		kind := rowsF32
		switch f.DType {
		case tensor.F32:
		case tensor.BF16:
			kind = rowsBF16
		default:
			refuse(op, "weights of type %s", f.DType)
		}
		return [9]launch.Arg{launch.P(f.At), launch.P(0), launch.I32(kind), launch.I32(f.Rows), launch.I32(f.Cols),
			launch.I32(f.Stride), launch.I32(1), launch.I32(1), launch.I32(0)}
	}
	if err := a.Check(); err != nil {
		refuse(op, "%v", err)
	}
	kind, ok := weightKinds[a.Encoding]
	if !ok {
		refuse(op, "weights of format %s", a.Format)
	}
	joined := 0
	if a.Joined {
		joined = 1
	}
	return [9]launch.Arg{launch.P(a.Values), launch.P(a.Scales), launch.I32(kind), launch.I32(a.Rows), launch.I32(a.Cols),
		launch.I32(0), launch.I32(a.Group), launch.I32(a.Groups()), launch.I32(joined)}
}

// wide returns 1 for F32, 0 for BF16.
func wide(op string, m launch.Mat) launch.Arg {
	if m.DType == tensor.F32 {
		return launch.I32(1)
	}
	if m.DType != tensor.BF16 {
		refuse(op, "activations of type %s", m.DType)
	}
	return launch.I32(0)
}

func config(warps int) launch.Config {
	blocks := (warps + warpsPerBlock - 1) / warpsPerBlock
	return launch.Config{Grid: launch.Dim{X: uint32(blocks)}, Block: launch.Dim{X: 32 * warpsPerBlock}, PDL: true}
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
