package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kMixProducts, kMixInput = launch.Named("kr_mix_products"), launch.Named("kr_mix_input")

// The sizes of src/mixed.cu.
const (
	mixedStreams                     = 4
	mixedSlice, mixedRows, mixedMost = 64, 32, 8192
	mixedThreads, mixedOut           = 256, mixedStreams * (2 + mixedStreams)
)

// Mixed is mixed streams that become the input of a block (MixedInput).
type Mixed struct {
	X           launch.Mat // [T, n*H] F32, the streams
	Y, By       launch.Mat // [T, H] and [T, n+n*n] F32: the streams grow by them first; absent: they do not
	W           launch.Mat // [N, n*H] F32, the trained matrix
	Base, Scale launch.Mat // as for MixWeights
	Weights     launch.Mat // [T, N] F32, the result of MixWeights
	Norm        launch.Mat // [1, H]
	Eps         float32    // of the norm
	device.StreamMix
}

// CanMixedInput reports whether MixedInput takes these: four streams of up to 8192 values, a multiple of 64, aligned to 16 bytes.
func CanMixedInput(out launch.Mat, m *Mixed) bool {
	h := out.Cols
	return m.Streams == mixedStreams && m.X.DType == tensor.F32 && m.W.DType == tensor.F32 && m.Weights.DType == tensor.F32 &&
		h%mixedSlice == 0 && h <= mixedMost && m.X.Cols == mixedStreams*h && m.W.Rows <= mixedOut && m.W.Rows == m.Weights.Cols && m.Norm.Cols == h &&
		aligned(m.X) && aligned(m.W) && aligned(out) && (m.By.Zero() || m.By.DType == tensor.F32)
}

// MixedScratch returns the scratch memory of MixedInput in bytes, for rows of streams of h values.
func MixedScratch(rows, h, outs int) int { return 4 * rows * (h / mixedSlice) * (outs + 1) }

// MixedInput computes, in order: with Y the streams as a block's output and the weights By change them; the weights of the streams;
// and out [T, H] F32 or BF16, the norm of the streams' weighted sum. scratch has MixedScratch bytes, aligned to 16.
func MixedInput(l *launch.List, out launch.Mat, m *Mixed, scratch launch.Ptr) {
	const op = "MixedInput"
	rows, h, outs := m.X.Rows, out.Cols, m.W.Rows
	if !CanMixedInput(out, m) || outs != mixedStreams && (outs != m.Width() || m.Iterations < 1) {
		refuse(op, "no kernel for streams %v, matrix %v, out %v", m.X, m.W, out)
	}
	floats(op, "out", out, rows, h)
	floats(op, "norm", m.Norm, 1, h)
	typed(op, "weights", m.Weights, tensor.F32, rows, outs)
	typed(op, "base", m.Base, tensor.F32, 1, outs)
	typed(op, "scale", m.Scale, tensor.F32, 1, m.Scale.Cols)
	typed(op, "matrix", m.W, tensor.F32, outs, m.X.Cols)
	if !m.Y.Zero() {
		floats(op, "y", m.Y, rows, h)
		typed(op, "by", m.By, tensor.F32, rows, m.Width()-mixedStreams)
	}
	if rows == 0 {
		return
	}
	slices := h / mixedSlice
	l.Add(kMixProducts, launch.Config{Grid: launch.Dim{X: uint32(slices), Y: uint32((rows + mixedRows - 1) / mixedRows)}, Block: launch.Dim{X: mixedThreads}, PDL: true},
		launch.P(scratch), launch.P(m.X.At), launch.I32(m.X.Stride), launch.P(m.Y.At), halfOf(m.Y), launch.I32(m.Y.Stride), launch.P(m.By.At), launch.I32(m.By.Stride),
		launch.P(m.W.At), launch.I32(m.W.Stride), launch.I32(rows), launch.I32(h), launch.I32(outs))
	l.Add(kMixInput, rowBlocks(rows, mixedThreads),
		launch.P(out.At), halfOf(out), launch.I32(out.Stride), launch.P(m.Weights.At), launch.I32(m.Weights.Stride), launch.P(scratch), launch.I32(slices),
		launch.P(m.X.At), launch.I32(m.X.Stride), launch.P(m.Base.At), launch.P(m.Scale.At), launch.P(m.Norm.At), halfOf(m.Norm), launch.I32(rows), launch.I32(h),
		launch.I32(outs), launch.I32(m.Iterations), launch.F32(m.Eps), launch.F32(m.StreamMix.Eps), launch.F32(m.NormEps))
}

// halfOf returns 1 for BF16.
func halfOf(m launch.Mat) launch.Arg {
	if m.DType == tensor.BF16 {
		return launch.I32(1)
	}
	return launch.I32(0)
}
