// Package mla launches multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1)
// over a paged cache. Generated rows take the absorbed form, which reads each latent once for all
// heads. Prompts' rows take the form with expanded keys and values. Sizes other than DeepSeek's
// (CanDecode, CanPrefill) run plain kernels.
//
// A row's bits depend on its own sequence only: keys are read in tiles at absolute positions, and
// only the sequence's own length decides how its keys are cut for several blocks. They do not
// depend on how a prompt was cut into batches either.
package mla

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Log2E converts scores to powers of two.
const log2E = math.Log2E

// cacheKind returns the number of a cache's type, as in latent.cuh.
func cacheKind(op string, c *launch.KV) int {
	switch c.DType {
	case tensor.F32:
		return 0
	case tensor.BF16:
		return 1
	case tensor.F8E4M3:
		return 2
	case tensor.I8:
		if c.Scales.Zero() || c.Group < 1 {
			refuse(op, "an int8 cache without scales")
		}
		return 3
	}
	refuse(op, "a cache of %s", c.DType)
	return -1
}

// wide returns 1 for F32, 0 for BF16.
func wide(op string, m launch.Mat) launch.Arg {
	switch m.DType {
	case tensor.F32:
		return launch.I32(1)
	case tensor.BF16:
		return launch.I32(0)
	}
	refuse(op, "rows of %s", m.DType)
	return launch.Arg{}
}

// check panics unless the matrices have p's sizes. kvb is the plain rows of kv_b.
func check(op string, out, q launch.Mat, c *launch.KV, kvb *launch.Weight, table launch.Mat, p device.MLA) {
	switch {
	case p.Heads < 1 || p.Nope < 1 || p.Rope < 0 || p.V < 1 || p.Rank < 1 || p.BlockTokens < 1:
		refuse(op, "sizes %+v", p)
	case q.Rows != out.Rows || q.Cols != p.Heads*(p.Nope+p.Rope) || out.Cols != p.Heads*p.V:
		refuse(op, "out %v, q %v for %d heads of %d+%d and %d", out, q, p.Heads, p.Nope, p.Rope, p.V)
	case c.Cols != p.Rank+p.Rope:
		refuse(op, "cache %v for %d+%d", c.Mat, p.Rank, p.Rope)
	case kvb.F.Zero() || kvb.F.Rows != p.Heads*(p.Nope+p.V) || kvb.F.Cols != p.Rank:
		refuse(op, "kv_b %v for %d heads of %d+%d, rank %d", kvb.F, p.Heads, p.Nope, p.V, p.Rank)
	case table.Zero() || table.DType != tensor.I32 || table.At%16 != 0:
		refuse(op, "a table of spans %v", table)
	}
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
