package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kMixWeights = launch.Named("kr_mix_weights")

const mixThreads = 256

// MixWeights turns the products in out [T, N] F32 into the weights of device.StreamMix, in place. x [T, width] are the streams; base
// [1, N] and scale [1, 3], or [1, 1] where N is the number of streams, are F32.
func MixWeights(l *launch.List, out, x, base, scale launch.Mat, p device.StreamMix) {
	const op = "MixWeights"
	scales := 3
	switch {
	case p.Streams < 1 || x.Cols%p.Streams != 0:
		refuse(op, "x %v for %d streams", x, p.Streams)
	case out.Cols == p.Streams:
		scales = 1
	case out.Cols != p.Width() || p.Iterations < 1:
		refuse(op, "out %v, sizes %+v", out, p)
	}
	typed(op, "out", out, tensor.F32, x.Rows, out.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	typed(op, "base", base, tensor.F32, 1, out.Cols)
	typed(op, "scale", scale, tensor.F32, 1, scales)
	if x.Rows == 0 {
		return
	}
	l.Add(kMixWeights, rowBlocks(x.Rows, mixThreads),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Cols), launch.P(base.At), launch.P(scale.At),
		launch.I32(p.Streams), launch.I32(out.Cols), launch.I32(p.Iterations), launch.F32(p.Eps), launch.F32(p.NormEps), launch.I32(flags(x)))
}
