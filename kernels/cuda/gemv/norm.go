package gemv

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

var kNorm = withBiases("kr_gemv_norm_", everywhere)

// normShared is the most shared memory of a block of NormMatMul.
const normShared = 48 << 10

// CanNorm reports whether NormMatMul takes the product of RMSNorm(x) [M, K] and w [N, K]:
// as Can for rows in, up to 8 of them, x F32 or BF16 and norm aligned to 16 bytes.
func CanNorm(gpu launch.GPU, in, x, norm launch.Mat, w *launch.Weight) bool {
	return Can(in, w) && in.Rows <= TileRows && elem.Chunks(in, x, norm) && x.Cols == in.Cols && norm.Cols == in.Cols &&
		normConfig(gpu, x, w).Shared <= normShared
}

func normConfig(gpu launch.GPU, x launch.Mat, w *launch.Weight) launch.Config {
	c := config(blocksOf(w.Rows()), 1, partsFor(gpu, w.Rows(), w.Cols()))
	c.Shared += uint32(x.Rows * (2*(x.Cols+8) + 4*32))
	return c
}

// NormMatMul computes out [M, N] = RMSNorm(x [M, K]) by norm [1, K] * transposed w [N, K], plus w's
// bias, in one launch, with the bits of elem.RMSNorm to BF16 and MatMul. out is F32 or BF16.
func NormMatMul(l *launch.List, gpu launch.GPU, out, x, norm launch.Mat, eps float32, w launch.Weight) {
	const op = "gemv NormMatMul"
	in := launch.Mat{At: 16, DType: tensor.BF16, Rows: x.Rows, Cols: x.Cols, Stride: x.Cols}
	if !CanNorm(gpu, in, x, norm, &w) { // in may be any matrix of the right shape
		refuse(op, "x %v, norm %v, w [%d, %d]", x, norm, w.Rows(), w.Cols())
	}
	checkOut(op, out, x.Rows, w.Rows())
	if x.Rows == 0 {
		return
	}
	f, _ := formatOf(&w)
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(x.At), half(x), launch.I32(x.Stride), launch.I32(x.Rows),
		launch.P(norm.At), half(norm), launch.F32(eps), launch.I32(elem.NormThreads(x.Cols)))
	l.Add(kNorm.of(f, w.Bias != 0), normConfig(gpu, x, &w), appendMatrix(args, &w)...)
}

func half(m launch.Mat) launch.Arg { return flag(m.DType == tensor.BF16) }
