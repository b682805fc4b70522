package route

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// MaxNormed is the most tokens that NormRoute takes.
const MaxNormed = 8

// normShared is what a block of NormRoute may have of shared memory beside the 17 KB of the
// choice.
const normShared = 30 << 10

// CanNorm reports whether NormRoute takes these: x BF16, of F32 or BF16, all rows aligned
// for chunks of 8, and few enough.
func CanNorm(x, of, norm, gate launch.Mat) bool {
	return x.DType == tensor.BF16 && x.Rows <= MaxNormed && elem.Chunks(x, of, norm) && elem.Chunks(gate) &&
		of.Rows == x.Rows && of.Cols == x.Cols && norm.Cols == x.Cols && normBytes(x) <= normShared
}

func normBytes(x launch.Mat) int { return x.Rows * (2*(x.Cols+8) + 4*32) }

// NormRoute is Route of x [T, H] = RMSNorm(of [T, H]) by norm [1, H], all in one launch, with
// the bits of elem.RMSNorm and Route. turn as there.
func NormRoute(l *launch.List, ids, weights, logits, x, of, norm launch.Mat, eps float32, gate, bias launch.Mat, p device.Router, turn launch.Ptr) {
	const op = "NormRoute"
	if !CanNorm(x, of, norm, gate) || turn == 0 {
		refuse(op, "x %v of %v, norm %v, gate %v", x, of, norm, gate)
	}
	f := checkLogits(op, logits, x, gate)
	checkTopK(op, ids, weights, logits, bias, p)
	if x.Rows == 0 {
		return
	}
	c, r := warps(x.Rows*gate.Rows), routerArgs(p)
	c.Shared = uint32(normBytes(x))
	l.Add(kNormRoute, c, launch.P(turn), launch.P(logits.At), launch.I32(logits.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows),
		launch.P(of.At), flag(of.DType == tensor.BF16), launch.I32(of.Stride), launch.P(norm.At), flag(norm.DType == tensor.BF16),
		launch.F32(eps), launch.I32(elem.NormThreads(x.Cols)),
		launch.P(gate.At), flag(f&flagBF16w != 0), launch.I32(gate.Stride), launch.I32(gate.Rows), launch.I32(gate.Cols),
		launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride), launch.P(bias.At),
		r[0], r[1], r[2], r[3], r[4], r[5], r[6])
}
