package gemv

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels and sizes of src/gemv_staged.cu.
var (
	kPair  = ofFormats("kr_gemv_pair_", int4x128, int8x128)
	kGated = ofFormats("kr_gemv_gated_", plainBF16, int4x128, int8x128)
)

const (
	stagedWarps = 8
	gatedDim    = 128 // the most values of a head
)

// ofFormats are the kernels of a name of some formats.
func ofFormats(prefix string, list ...format) map[format]launch.Kernel {
	k := map[format]launch.Kernel{}
	for _, f := range list {
		k[f] = launch.Named(prefix + formatNames[f])
	}
	return k
}

// canStage reports whether a kernel takes the product of x and w: as Can, very few rows, no bias, and one of its formats.
func canStage(k map[format]launch.Kernel, x launch.Mat, w *launch.Weight) bool {
	f, _ := formatOf(w)
	_, ok := k[f]
	return ok && Can(x, w) && x.Rows < wideFrom && w.Bias == 0
}

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
	return canStage(kPair, x, w) && s.A.Zero() && s.Bias == 0 && Can(x, s)
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

// CanGated reports whether AddGated takes these: fewer than five rows of BF16, gates that are silu, heads of at most 128, w BF16, INT4 or INT8 in
// groups of 128, without a bias.
func CanGated(o, x, norm launch.Mat, w *launch.Weight, p device.DeltaNet) bool {
	return canStage(kGated, o, w) && o.Cols == p.Values() && x.DType == tensor.BF16 && x.Rows == o.Rows && x.Cols == p.Width() && norm.Cols == p.ValueDim &&
		p.ValueDim <= gatedDim && !p.SigmoidGate && p.Floor == 0
}

// AddGated computes out [M, N] += the gated norm (delta.GatedNorm) of o [M, values] with the gates in x [M, width] and norm [1, value dim], *
// transposed w [N, values], in one launch with the bits of both. out is F32 or BF16.
func AddGated(l *launch.List, gpu launch.GPU, out, o, x, norm launch.Mat, eps float32, w launch.Weight, p device.DeltaNet) {
	const op = "gemv AddGated"
	if !CanGated(o, x, norm, &w, p) {
		refuse(op, "o %v, x %v, w [%d, %d], sizes %+v", o, x, w.Rows(), w.Cols(), p)
	}
	checkOut(op, out, o.Rows, w.Rows())
	if o.Rows == 0 {
		return
	}
	f, _ := formatOf(&w)
	parts, z := partsFor(gpu, w.Rows(), w.Cols()), p.Gates()
	args := append(make([]launch.Arg, 0, maxArgs), launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(o.At), launch.I32(o.Stride),
		launch.P(x.At), launch.I32(x.Stride), launch.I32(o.Rows), launch.P(norm.At), half(norm), launch.I32(p.ValueHeads), launch.I32(p.Group()), launch.I32(p.ValueDim),
		launch.I64(int64(z.Step)<<32|int64(z.At)), launch.F32(eps), launch.I32(parts))
	l.Add(kGated[f], stagedConfig(stagedGroups(&w, parts), o.Rows, o.Cols), appendMatrix(args, &w)...)
}
