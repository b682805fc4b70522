package gemv

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

var (
	kCombine     = launch.Named("kr_gemv_combine")
	kCombineNorm = launch.Named("kr_gemv_combine_norm")
)

// combine launches the sums of sorted work.
func combine(l *launch.List, out launch.Mat, m *Mixture, s scratch, base launch.Ptr, o Options) {
	c := launch.Config{Grid: launch.Dim{X: uint32((out.Cols + 255) / 256), Y: uint32(out.Rows)}, Block: launch.Dim{X: 256}, PDL: true}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), flag(o.Add), launch.P(s.y), launch.P(base), launch.I32(out.Cols),
		launch.P(m.IDs.At), launch.P(m.Weights.At), launch.I32(m.IDs.Cols), launch.I32(m.Bank.Experts), launch.P(m.Bank.Map))
	l.Add(kCombine, c, m.appendGate(args)...)
}

// argRanks is the place of the arguments RANKS_ARGS of src/gemv_combine.cu in those of kCombine.
const argRanks = 4

// NormCombined makes the last launch of l also compute out [M, H] BF16 = RMSNorm(x) by norm [1, H], with the
// bits of elem.RMSNorm, if that launch adds a mixture of experts to x [M, H] F32. ok is false, and nothing has
// changed, if it does not. out must not overlap what MoE reads.
func NormCombined(l *launch.List, out, x, norm launch.Mat, eps float32) (ok bool) {
	if len(l.Ops) == 0 || x.DType != tensor.F32 || out.DType != tensor.BF16 || !elem.Chunks(out, x, norm) {
		return false
	}
	o := l.Ops[len(l.Ops)-1]
	args := append(make([]launch.Arg, 0, maxArgs), l.OpArgs(&o)...)
	if o.Kind != launch.Run || o.Kernel != kCombine || o.Config.Grid.Y != uint32(x.Rows) || args[argRanks+2] != launch.I32(x.Cols) {
		return false
	}
	for i, want := range [argRanks]launch.Arg{launch.P(x.At), flag(true), launch.I32(x.Stride), flag(true)} {
		if args[i] != want {
			return false
		}
	}
	l.Ops, l.Args = l.Ops[:len(l.Ops)-1], l.Args[:o.First]
	l.Add(kCombineNorm, launch.Config{Grid: launch.Dim{X: uint32(x.Rows)}, Block: launch.Dim{X: uint32(elem.NormThreads(x.Cols))}, PDL: true},
		append([]launch.Arg{launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(norm.At),
			flag(norm.DType == tensor.BF16), launch.F32(eps)}, args[argRanks:]...)...)
	return true
}
