package streams

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// FewRows is the most rows of MixLow and MixIn. Each block reads all rows, which costs more than launches of their own
// where there are more.
const FewRows = 4

// The kernels of src/streams_few.cu, by the number of rows.
var (
	kMixLow = map[int]launch.Kernel{1: launch.Named("kr_mix_low_1"), 2: launch.Named("kr_mix_low_2"), 4: launch.Named("kr_mix_low_4")}
	kMixIn  = map[int]launch.Kernel{1: launch.Named("kr_mix_in_1"), 2: launch.Named("kr_mix_in_2"), 4: launch.Named("kr_mix_in_4")}
)

// canFew reports whether x [M, K] and w [N, K] are BF16 rows that are read 16 bytes at a time. There is no kernel for three rows.
func canFew(x launch.Mat, w *launch.Weight) bool {
	return x.Rows != 3 && x.Rows <= FewRows && x.DType == tensor.BF16 && w.A.Zero() && w.Bias == 0 && w.F.DType == tensor.BF16 &&
		elem.Chunks(x, w.F) && x.Cols == w.F.Cols
}

// CanMixLow reports whether MixLow takes the product of x and w.
func CanMixLow(out, x launch.Mat, w *launch.Weight) bool {
	return canFew(x, w) && out.DType == tensor.BF16
}

// MixLow computes out [M, N] = x [M, K] * transposed w [N, K], of which low is computed of the first rank columns and more of those
// behind. Bits do not depend on M.
func MixLow(l *launch.List, out, x launch.Mat, w launch.Weight, rank int, low, more device.Sigmoid) {
	const op = "MixLow"
	if !CanMixLow(out, x, &w) || out.Rows != x.Rows || out.Cols != w.Rows() || !low.Silu || more.Silu {
		refuse(op, "out %v, x %v, w %v", out, x, w.F)
	}
	if x.Rows == 0 {
		return
	}
	l.Add(kMixLow[x.Rows], launch.Config{Grid: launch.Dim{X: uint32(w.F.Rows)}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.F.At), launch.I32(w.F.Stride), launch.I32(x.Cols/8),
		launch.I32(rank), launch.F32(low.In), launch.F32(low.Out), launch.F32(more.In), launch.F32(more.Out))
}

// CanMixIn reports whether MixIn takes its operands.
func CanMixIn(out, x, low launch.Mat, w *launch.Weight) bool {
	return canFew(low, w) && out.DType == tensor.BF16 && x.DType == tensor.BF16
}

// MixIn computes out [M, H] = the sum of the streams of x [M, n*H], weighed by p of low [M, R] * transposed w [n*H, R]. Bits do not
// depend on M.
func MixIn(l *launch.List, out, x, low launch.Mat, w launch.Weight, p device.Sigmoid) {
	const op = "MixIn"
	n := count(op, x, out.Cols)
	if !CanMixIn(out, x, low, &w) || out.Rows != x.Rows || low.Rows != x.Rows || w.Rows() != x.Cols || p.Silu {
		refuse(op, "out %v, x %v, low %v, w %v", out, x, low, w.F)
	}
	if x.Rows == 0 {
		return
	}
	const perBlock = 8
	l.Add(kMixIn[x.Rows], launch.Config{Grid: launch.Dim{X: uint32((out.Cols + perBlock - 1) / perBlock)}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(low.At), launch.I32(low.Stride),
		launch.P(w.F.At), launch.I32(w.F.Stride), launch.I32(low.Cols/8), launch.I32(n), launch.I32(out.Cols), launch.F32(p.In), launch.F32(p.Out))
}
