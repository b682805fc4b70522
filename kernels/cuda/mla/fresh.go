package mla

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kBegin = launch.Named("kr_mla_begin")

// Fresh are the latents of a batch's rows as the projection returns them, and the arguments of
// elem.LatentStore for them.
type Fresh struct {
	KV, Norm                 launch.Mat // [T, rank+rope] BF16, [1, rank]
	Eps                      float32
	Positions, Slots, Angles launch.Mat // I32 [T, 1] twice, written by no kernel of the step; F32 [positions, rope]
	Interleaved              bool
}

// CanDecodeNew reports whether DecodeNew takes these: as CanDecode, and latents of BF16,
// everything aligned for chunks of 8.
func CanDecodeNew(gpu launch.GPU, q launch.Mat, cache launch.KV, kvb launch.Weight, p device.MLA, f *Fresh) bool {
	return CanDecode(gpu, q, cache, kvb, p) && f.KV.DType == tensor.BF16 && elem.Chunks(f.KV, f.Norm) && q.Stride%8 == 0 &&
		f.Angles.At%16 == 0 && f.Angles.Stride%4 == 0 && f.Angles.DType == tensor.F32
}

// add launches the store of latents and, in the same kernel, the projection of the queries into
// the latent space, to which begin and queries belong: `each` rows per block. Each of these rows
// is stored by a block of its own.
func (f *Fresh) add(l *launch.List, begin launch.Config, queries [9]launch.Arg, each int, q launch.Mat, c *launch.KV, p device.MLA) {
	const op = "MLADecode"
	switch t := q.Rows; {
	case f.KV.Rows != t || f.KV.Cols != width || f.Norm.Rows != 1 || f.Norm.Cols != rank || f.Angles.Cols != rope:
		refuse(op, "latents %v, norm %v, angles %v for q %v", f.KV, f.Norm, f.Angles, q)
	case f.Positions.DType != tensor.I32 || f.Positions.Rows != t || !f.Positions.Dense() || f.Slots.DType != tensor.I32 || f.Slots.Rows != t || !f.Slots.Dense():
		refuse(op, "positions %v, slots %v for q %v", f.Positions, f.Slots, q)
	}
	begin.Grid.X, begin.Grid.Y = begin.Grid.X*begin.Grid.Y+uint32(min(q.Rows, each)), 1
	args := append(make([]launch.Arg, 0, 31), queries[:]...)
	args = append(args, launch.P(c.At), launch.P(c.Scales.At), launch.I32(cacheKind(op, c)), launch.I32(c.Stride), launch.I32(c.Scales.Stride),
		launch.I32(c.Group), launch.I32(c.Rows), bit(c.DType != tensor.I8 && elem.Aligned(c.Mat)), launch.P(f.KV.At), launch.I32(f.KV.Stride),
		launch.P(f.Norm.At), bit(f.Norm.DType == tensor.BF16), launch.F32(f.Eps), launch.P(f.Positions.At), launch.P(f.Slots.At),
		launch.P(f.Angles.At), launch.I32(f.Angles.Stride), launch.I32(f.Angles.Rows), bit(f.Interleaved),
		launch.P(c.Marks.At), launch.I32(c.Mark))
	l.Add(kBegin, begin, args...)
}

func bit(v bool) launch.Arg {
	if v {
		return launch.I32(1)
	}
	return launch.I32(0)
}
