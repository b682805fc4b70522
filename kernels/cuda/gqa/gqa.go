// Package gqa launches grouped-query attention (arXiv 2305.13245) over a paged cache. Heads of
// 64, 128, 256 and 512 have kernels with tensor cores (Decode, Prefill). The plain kernel, with a
// block for each row and head, takes every size; tests compare the others with it.
//
// A row's bits depend on its own sequence only: keys are read in tiles at absolute positions, and
// only the sequence's own length decides how its keys are cut for several blocks.
package gqa

import (
	"fmt"
	"strconv"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kPlain = launch.Named("kr_gqa_plain")

const plainThreads = 128

// Plain computes attention of the rows of all prompts in table (package spans), or of all
// generated rows: out [T, heads*d], q [T, heads*d], both F32 or BF16; cache [slots, 2*kvHeads*d]
// of F32, BF16, F8E4M3 or I8; sinks [1, heads] F32 or BF16, or absent. Other rows of out are unchanged.
func Plain(l *launch.List, out, q launch.Mat, cache launch.KV, sinks, table launch.Mat, decode bool, p device.GQA) {
	plain(l, out, q, cache, sinks, launch.Mat{}, table, decode, p)
}

// PlainLists is Plain over the positions chosen [T, lists*n] I32 alone, without sinks and window: a key head reads those of its list
// (device.GQA.Lists), up to the first -1.
func PlainLists(l *launch.List, out, q launch.Mat, cache launch.KV, chosen, table launch.Mat, decode bool, p device.GQA) {
	checkLists(chosen, q, p)
	plain(l, out, q, cache, launch.Mat{}, chosen, table, decode, p)
}

func plain(l *launch.List, out, q launch.Mat, cache launch.KV, sinks, chosen, table launch.Mat, decode bool, p device.GQA) {
	kind := check(out, q, &cache, table, p)
	if q.Rows == 0 {
		return
	}
	lists := max(1, p.Lists)
	config := launch.Config{
		Grid:   launch.Dim{X: uint32(p.Heads), Y: uint32(q.Rows)},
		Block:  launch.Dim{X: plainThreads},
		Shared: uint32(4 * (2*p.HeadDim + 2*plainThreads + 2*plainThreads/32)),
		PDL:    true,
	}
	l.Add(kPlain, config,
		launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(q.At), wide(q), launch.I32(q.Stride),
		launch.P(cache.At), launch.P(cache.Scales.At), launch.I32(kind), launch.I32(cache.Stride), launch.I32(cache.Scales.Stride), launch.I32(cache.Group),
		launch.P(table.At), bit(decode), launch.I32(p.KVHeads), launch.I32(p.HeadDim),
		scale(p), launch.I32(p.BlockTokens), launch.I32(p.Window), launch.P(sinks.At), sinkType(sinks, p),
		launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(lists), launch.I32(chosen.Cols/lists))
}

// sinkType is wide of sinks, whose shape it checks.
func sinkType(sinks launch.Mat, p device.GQA) launch.Arg {
	if sinks.Zero() {
		return launch.I32(0)
	}
	if sinks.Rows != 1 || sinks.Cols != p.Heads {
		refuse("sinks %v of %d heads", sinks, p.Heads)
	}
	return wide(sinks)
}

// named returns the kernel of a head size.
func named(name string, dim int) launch.Kernel { return launch.Named(name + "_" + strconv.Itoa(dim)) }

// check panics unless all sizes fit, and returns the cache's type as latent.cuh numbers it.
func check(out, q launch.Mat, c *launch.KV, table launch.Mat, p device.GQA) int {
	switch {
	case p.KVHeads < 1 || p.HeadDim < 1 || p.BlockTokens < 1 || p.Heads < 1 || p.Heads%p.KVHeads != 0 || p.Window < 0:
		refuse("sizes %+v", p)
	case q.Rows != out.Rows || q.Cols != p.Heads*p.HeadDim || out.Cols != q.Cols:
		refuse("out %v, q %v for %d heads of %d", out, q, p.Heads, p.HeadDim)
	case c.Cols != p.Width():
		refuse("cache %v for %d heads of %d", c.Mat, p.KVHeads, p.HeadDim)
	case table.Zero() || table.DType != tensor.I32 || table.At%16 != 0:
		refuse("a table of spans %v", table)
	}
	return cacheKind(c)
}

// cacheKind returns a cache's type as latent.cuh numbers it.
func cacheKind(c *launch.KV) int {
	if c.DType == tensor.I8 && (c.Scales.Zero() || c.Group < 1) {
		refuse("an int8 cache without scales")
	}
	for i, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8} {
		if c.DType == dt {
			return i
		}
	}
	refuse("a cache of %s", c.DType)
	return -1
}

// wide is 1 for F32, 0 for BF16.
func wide(m launch.Mat) launch.Arg {
	switch m.DType {
	case tensor.F32:
		return launch.I32(1)
	case tensor.BF16:
		return launch.I32(0)
	}
	refuse("rows of %s", m.DType)
	return launch.Arg{}
}

func refuse(format string, args ...any) {
	panic(&device.ShapeError{Op: "GQA", Why: fmt.Sprintf(format, args...)})
}
