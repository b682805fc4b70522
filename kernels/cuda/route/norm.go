package route

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// MaxNormed is the most tokens that NormRoute takes.
const MaxNormed = 2

// normShared is the shared memory of a block of NormRoute in addition to the 10 KB of products
// and choice.
const normShared = 30 << 10

// CanNorm reports whether NormRoute takes these: x BF16, of F32 or BF16, all rows aligned
// for chunks of 8, and few enough.
func CanNorm(x, of, norm, gate launch.Mat, p device.Router) bool {
	return !apart(p) && x.DType == tensor.BF16 && x.Rows <= MaxNormed && elem.Chunks(x, of, norm) && elem.Chunks(gate) &&
		of.Rows == x.Rows && of.Cols == x.Cols && norm.Cols == x.Cols && normBytes(x) <= normShared
}

func normBytes(x launch.Mat) int { return x.Rows * (2*(x.Cols+8) + 4*32) }

// NormRoute computes Route of x [T, H] = RMSNorm(of [T, H]) by norm [1, H], all in one launch,
// with the bits of elem.RMSNorm and Route. turn and scratch are as in Route.
func NormRoute(l *launch.List, ids, weights, logits, x, of, norm launch.Mat, eps float32, gate launch.Weight, bias launch.Mat, p device.Router, turn, scratch launch.Ptr) {
	const op = "NormRoute"
	if !CanNorm(x, of, norm, gate.F, p) || turn == 0 {
		refuse(op, "x %v of %v, norm %v, gate %v", x, of, norm, gate.F)
	}
	checkLogits(op, logits, x, gate.F, scratch)
	checkTopK(op, ids, weights, logits, bias, p)
	if x.Rows == 0 {
		return
	}
	c := fewConfig(x, gate.F)
	c.Shared = uint32(normBytes(x))
	product, choice := logitArgs(logits, x, &gate, scratch), choiceOf(ids, weights, bias, p, 0)
	args := append(append(append(make([]launch.Arg, 0, 32), launch.P(turn)), product[:]...), choice[:]...)
	args = append(args, launch.P(of.At), flag(of.DType == tensor.BF16), launch.I32(of.Stride), launch.P(norm.At), flag(norm.DType == tensor.BF16),
		launch.F32(eps), launch.I32(elem.NormThreads(x.Cols)), launch.I32(0))
	l.Add(kNormRoute[half(gate.F)], c, args...)
}
