package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// RMSNorm computes out = x / sqrt(mean(x^2) + eps) * w; out and x [T, H] may be the same; w [1,
// H].
func RMSNorm(l *launch.List, out, x, w launch.Mat, eps float32) {
	const op = "RMSNorm"
	floats(op, "out", out, x.Rows, x.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	floats(op, "w", w, 1, x.Cols)
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(out, x, w)
	l.Add(kRMSNorm, rowBlocks(x.Rows, normThreads(x.Cols, step(f, flagVec))),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At),
		launch.I32(x.Cols), launch.F32(eps), launch.I32(f))
}

// LayerNorm computes out = (x - mean(x)) / sqrt(variance(x) + eps) * w + b; out and x [T, H] may be the same; w
// and b [1, H].
func LayerNorm(l *launch.List, out, x, w, b launch.Mat, eps float32) {
	const op = "LayerNorm"
	floats(op, "out", out, x.Rows, x.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	floats(op, "w", w, 1, x.Cols)
	floats(op, "b", b, 1, x.Cols)
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	const threads = 128
	l.Add(kLayerNorm, rowBlocks(x.Rows, threads),
		launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(x.At), wide(x), launch.I32(x.Stride), launch.P(w.At), wide(w), launch.P(b.At), wide(b),
		launch.I32(x.Cols), launch.F32(eps))
}

// wide is 1 for F32, 0 for BF16.
func wide(m launch.Mat) launch.Arg {
	if m.DType == tensor.F32 {
		return launch.I32(1)
	}
	return launch.I32(0)
}

// AddRMSNorm computes x += delta, then out = RMSNorm(x); x is F32, out may be delta.
func AddRMSNorm(l *launch.List, out, x, delta, w launch.Mat, eps float32) {
	const op = "AddRMSNorm"
	floats(op, "out", out, x.Rows, x.Cols)
	typed(op, "x", x, tensor.F32, x.Rows, x.Cols)
	floats(op, "delta", delta, x.Rows, x.Cols)
	floats(op, "w", w, 1, x.Cols)
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(out, delta, w)
	if !aligned(x) {
		f &^= flagVec
	}
	l.Add(kAddRMSNorm, rowBlocks(x.Rows, normThreads(x.Cols, step(f, flagVec))),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(delta.At), launch.I32(delta.Stride),
		launch.P(w.At), launch.I32(x.Cols), launch.F32(eps), launch.I32(f))
}

// WeightedSum computes out [T, H] = base + the sum over k of weights[t, k] * y[t*K+k], added in
// that order; y [T*K, H], weights [T, K] F32, base [T, H], out itself, or absent. A row of y
// whose weight is zero is not used, and may hold anything.
func WeightedSum(l *launch.List, out, y, weights, base launch.Mat) {
	sum(l, kWeightedSum, out, y, weights, base)
}

// Here selects the rows of y that count: those of ids [T, K] I32, without gaps, that are in
// 0..Experts-1 and whose entry in Map I32 [Experts] is not below 0.
type Here struct {
	IDs     launch.Mat
	Map     launch.Ptr
	Experts int
}

// SumHere computes WeightedSum of the rows that count; others may hold anything.
func SumHere(l *launch.List, out, y, weights, base launch.Mat, h Here) {
	const op = "SumHere"
	typed(op, "ids", h.IDs, tensor.I32, out.Rows, weights.Cols)
	if !h.IDs.Dense() || h.Experts < 1 || h.Map == 0 {
		refuse(op, "ids %v, rows %d apart, of %d experts", h.IDs, h.IDs.Stride, h.Experts)
	}
	sum(l, kWeightedSumHere, out, y, weights, base, launch.P(h.IDs.At), launch.P(h.Map), launch.I32(h.Experts))
}

func sum(l *launch.List, k launch.Kernel, out, y, weights, base launch.Mat, here ...launch.Arg) {
	const op = "WeightedSum"
	floats(op, "out", out, out.Rows, out.Cols)
	checkSum(op, y, weights, base, out.Rows, out.Cols)
	if out.Rows == 0 || out.Cols == 0 {
		return
	}
	f := flags(out, y, base)
	args := append(make([]launch.Arg, 0, 14),
		launch.P(out.At), launch.I32(out.Stride), launch.P(y.At), launch.I32(y.Stride), launch.P(weights.At), launch.I32(weights.Stride),
		launch.I32(weights.Cols), launch.P(base.At), launch.I32(base.Stride))
	l.Add(k, pieces(op, out.Rows, out.Cols, f), append(append(args, here...), launch.I32(out.Cols), launch.I32(f))...)
}

func checkSum(op string, y, weights, base launch.Mat, rows, cols int) {
	typed(op, "weights", weights, tensor.F32, rows, weights.Cols)
	if weights.Cols < 1 {
		refuse(op, "weights are %v", weights)
	}
	floats(op, "y", y, rows*weights.Cols, cols)
	if !base.Zero() {
		floats(op, "base", base, rows, cols)
	}
}
