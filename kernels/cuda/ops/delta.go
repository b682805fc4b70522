package ops

import (
	"krater/kernels/cuda/delta"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// MatMulPair computes out [M, N+S] = x * w^T, and behind that x * s^T.
func (b *Builder) MatMulPair(out, x launch.Mat, w, s launch.Weight) {
	if b.forms("MatMulPair", x.Rows, func(from, to int) { b.MatMulPair(out.RowRange(from, to), x.RowRange(from, to), w, s) }) {
		return
	}
	if n := w.Rows(); b.few(x.Rows) && gemv.CanPair(b.sized(x), &w, &s) {
		gemv.Pair(b.List, b.GPU, out, x, w, s)
	} else {
		b.MatMul(out.ColRange(0, n), x, w)
		b.MatMul(out.ColRange(n, out.Cols), x, s)
	}
}

// DeltaStep computes Conv and Delta of the generated rows of list; conv is room for the results of the convolution.
func (b *Builder) DeltaStep(out, conv, x, w launch.Mat, tail launch.KV, ba, decay, bias launch.Mat, states launch.KV, list []device.Span, table launch.Mat, p device.DeltaNet) {
	if !b.Plain && len(list) <= delta.StepMost && delta.CanStep(x, p) {
		delta.Step(b.List, out, x, w, tail.Mat, ba, decay, bias, states.Mat, list, table, gemv.Paired(b.List), p)
		return
	}
	b.Conv(conv, x, w, tail, list, table, true, p)
	b.Delta(out, conv, ba, decay, bias, states, list, table, true, p)
}
