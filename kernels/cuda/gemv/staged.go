package gemv

import (
	"krater/kernels/cuda/launch"
)

// The kernels and sizes of src/gemv_staged.cu.
var (
	kPair = map[format]launch.Kernel{int4x128: launch.Named("kr_gemv_pair_int4_g128"), int8x128: launch.Named("kr_gemv_pair_int8_g128")}
)

const stagedWarps = 8

// stagedGroups is the number of blocks for w, whose rows are split into parts.
func stagedGroups(w *launch.Weight, parts int) int {
	n := stagedWarps / parts
	return (blocksOf(w.Rows()) + n - 1) / n
}

func stagedConfig(groups, rows, cols int) launch.Config {
	c := config(groups, 1, stagedWarps)
	c.Shared += uint32(rows * stagedBytes(cols))
	return c
}

// CanPair reports whether Pair takes these: fewer than five rows, w INT4 or INT8 in groups of 128, s BF16, without biases.
func CanPair(x launch.Mat, w, s *launch.Weight) bool {
	f, _ := formatOf(w)
	_, ok := kPair[f]
	return ok && Can(x, w) && x.Rows < wideFrom && w.Bias == 0 && s.A.Zero() && s.Bias == 0 && Can(x, s)
}

// Pair computes out [M, N+S] = x [M, K] * transposed w [N, K], and behind that * transposed s [S, K], in one launch with the bits of MatMul.
// out is F32 or BF16.
func Pair(l *launch.List, gpu launch.GPU, out, x launch.Mat, w, s launch.Weight) {
	const op = "gemv Pair"
	if !CanPair(x, &w, &s) {
		refuse(op, "x %v, w [%d, %d], s [%d, %d]", x, w.Rows(), w.Cols(), s.Rows(), s.Cols())
	}
	checkOut(op, out, x.Rows, w.Rows()+s.Rows())
	if x.Rows == 0 {
		return
	}
	f, _ := formatOf(&w)
	parts, more := partsFor(gpu, w.Rows(), w.Cols()), partsFor(gpu, s.Rows(), s.Cols())
	args := append(make([]launch.Arg, 0, maxArgs), launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows),
		launch.I32(parts), launch.I32(more))
	l.Add(kPair[f], stagedConfig(stagedGroups(&w, parts)+stagedGroups(&s, more), x.Rows, x.Cols), appendMatrix(appendMatrix(args, &w), &s)...)
}

// Paired reports whether the last launch of l is Pair. It lets the next launch begin only when all launches before it have ended.
func Paired(l *launch.List) bool {
	if len(l.Ops) == 0 {
		return false
	}
	o := &l.Ops[len(l.Ops)-1]
	return o.Kind == launch.Run && (o.Kernel == kPair[int4x128] || o.Kernel == kPair[int8x128])
}
