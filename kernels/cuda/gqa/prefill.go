package gqa

import (
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// prefiller is the two kernels for a cache's type and a head size, and the resources of their
// blocks.
type prefiller struct {
	any, hopper            launch.Kernel
	anyWindow              launch.Kernel // with a window, sinks or both
	hopperWindow           launch.Kernel
	shared, sharedHopper   int
	threads, threadsHopper int
	parts, partsHopper     int // of a row tile, each the work of a block
}

var prefillers = func() map[kernelKey]prefiller {
	out := map[kernelKey]prefiller{}
	for _, dim := range []int{64, 128, 256, 512} {
		for dt, name := range dtypeNames {
			k := prefiller{any: named("kr_gqa_prefill_"+name, dim), anyWindow: named("kr_gqa_prefill_window_"+name, dim),
				threads: 256, threadsHopper: 384, parts: 1, partsHopper: 1}
			k.hopper, k.hopperWindow = launch.Named(k.any.String()+"_h"), launch.Named(k.anyWindow.String()+"_h")
			keys, stage, stages := 64, 128*2*dim, 4 // of the rings of Hopper's kernel, together
			if dim > 128 {                          // half as many rows and keys
				k.threads, k.parts, keys, stage = 128, 2, 32, 64*2*dim
				k.shared = spans.RowTile / 2 * 2 * dim
			}
			if dim > 256 { // two warps share rows; on Hopper two warpgroups do, and a stage has half of the columns
				k.parts, keys, k.shared = 4, 16, k.shared/2+4*16*16*4
				k.partsHopper, stage = 2, stage/2
			}
			if dim > 256 || dim > 128 && dt != tensor.BF16 { // more keys, or a stage as stored in the cache
				stages++
			}
			k.shared += 2 * 2 * keys * 2 * dim
			k.sharedHopper = spans.RowTile/k.partsHopper*2*dim + stages*stage + 16*8 + 8
			if dt != tensor.BF16 { // a stage as stored in the cache
				k.shared += 2*keys*dim - 2*keys*2*dim
				if dim <= 128 {
					k.threadsHopper = 512 // more to widen
				}
			}
			out[kernelKey{dt, dim}] = k
		}
	}
	return out
}()

// CanPrefill reports whether Prefill takes these: the sizes and types that CanDecode names, and a
// window with heads of 512 too.
func CanPrefill(gpu launch.GPU, out, q launch.Mat, cache launch.KV, sinks launch.Mat, p device.GQA) bool {
	k, ok := prefillers[kernelKey{cache.DType, p.HeadDim}]
	return ok && readable(out, q, &cache, sinks, p) && gpu.SharedMax >= k.shared
}

// special reports whether attention has more than every key before a row.
func special(sinks launch.Mat, p device.GQA) bool { return !sinks.Zero() || p.Window > 0 }

// Prefill computes attention of the rows of all prompts; list is the batch in table. out [T,
// heads*d] BF16 or F32, q [T, heads*d] BF16, sinks [1, heads] F32 or absent. turn is a word on
// the GPU that is zero before and after; 0: none. It needs no scratch memory.
func Prefill(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, sinks launch.Mat, list []device.Span, table launch.Mat, turn launch.Ptr, p device.GQA) {
	check(out, q, &cache, table, p)
	sinkType(sinks, p)
	if !CanPrefill(gpu, out, q, cache, sinks, p) {
		refuse("no kernel for out %v, q %v, cache %v, sinks %v", out, q, cache.Mat, sinks)
	}
	tiles := 0
	for i := range list {
		tiles += spans.Tiles(&list[i])
	}
	if tiles == 0 {
		return
	}
	k := prefillers[kernelKey{cache.DType, p.HeadDim}]
	if special(sinks, p) {
		k.any, k.hopper = k.anyWindow, k.hopperWindow
	}
	kernel, config := k.any, launch.Config{Grid: launch.Dim{X: uint32(p.Heads), Y: uint32(tiles * k.parts)},
		Block: launch.Dim{X: uint32(k.threads)}, Shared: uint32(k.shared), PDL: true}
	args := []launch.Arg{launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(q.At), launch.I32(q.Stride), launch.P(cache.At), launch.P(cache.Scales.At),
		launch.I32(cache.Stride), launch.I32(cache.Scales.Stride), launch.P(table.At), launch.I32(p.KVHeads), scale(p), launch.I32(p.BlockTokens)}
	units := cache.Rows * cache.Stride * cache.DType.Size() / 16 // Hopper's kernels count them in 32 bits
	if gpu.Hopper && gpu.SharedMax >= k.sharedHopper && units <= math.MaxUint32 {
		blocks := p.Heads * tiles * k.partsHopper
		if turn != 0 { // a block computes one part after the other
			blocks = min(blocks, gpu.SMs)
		}
		kernel, config.Grid, config.Block.X, config.Shared = k.hopper, launch.Dim{X: uint32(blocks)}, uint32(k.threadsHopper), uint32(k.sharedHopper)
		args = append(args, launch.I32(p.Heads), launch.P(turn))
	}
	if special(sinks, p) {
		window := p.Window
		if window == 0 {
			window = math.MaxInt32 / 2 // positions are below it
		}
		args = append(args, launch.I32(window), launch.P(sinks.At))
	}
	l.Add(kernel, config, args...)
}
