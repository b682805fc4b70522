package mla

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kPoolKeys = launch.Named("kr_pool_keys")

// The sizes of pool.cu.
const keyCols, keyThreads = 64, 256

// PoolKeys computes the keys of pools (device.Index) for the spans of list, prompts or generated rows: out [T, Dim] and x [T,
// 2*Dim] F32 or BF16, bias [Pool, Dim] and tail [slots*Pool, 2*Dim] F32.
func PoolKeys(l *launch.List, out, x, bias, tail launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.Index) {
	const op = "PoolKeys"
	switch {
	case p.Pool < 1 || p.Dim < 1 || out.Cols != p.Dim || x.Cols != 2*p.Dim || out.Rows != x.Rows:
		refuse(op, "sizes %+v, out %v, x %v", p, out, x)
	case bias.DType != tensor.F32 || bias.Rows != p.Pool || bias.Cols != p.Dim:
		refuse(op, "bias is %v, need F32 [%d, %d]", bias, p.Pool, p.Dim)
	case tail.DType != tensor.F32 || tail.Rows%p.Pool != 0 || tail.Cols != 2*p.Dim || !tail.Dense():
		refuse(op, "tail is %v, need dense F32 [slots*%d, %d]", tail, p.Pool, 2*p.Dim)
	case table.Zero() || table.DType != tensor.I32 || table.At%16 != 0:
		refuse(op, "a table of spans %v", table)
	}
	tiles := len(list)
	if !decode {
		tiles = 0
		for i := range list {
			tiles += spans.Tiles(&list[i])
		}
	}
	if tiles == 0 {
		return
	}
	l.Add(kPoolKeys, launch.Config{Grid: launch.Dim{X: over(p.Dim, keyCols), Y: uint32(tiles)}, Block: launch.Dim{X: keyThreads}, PDL: true},
		launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(x.At), wide(op, x), launch.I32(x.Stride), launch.P(bias.At), launch.I32(bias.Stride),
		launch.P(tail.At), launch.P(table.At), launch.I32(flag(decode)), launch.I32(tail.Rows/p.Pool), launch.I32(p.Pool), launch.I32(p.Dim))
}
