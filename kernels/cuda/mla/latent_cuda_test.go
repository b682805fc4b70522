//go:build cuda

package mla

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// TestLatents: rows of prompts and generated rows see what they have chosen, up to the first -1, and a row's bits do not depend on
// the rows beside it.
func TestLatents(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 200, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 1}, {past: 67, rows: 5}, {past: 3, rows: 1, decode: true}, {past: 560, rows: 1, decode: true}}
	for i, x := range []struct {
		cache                tensor.DType
		heads, nope, v, topK int
	}{{tensor.BF16, 2, 128, 64, 70}, {tensor.F8E4M3, 67, 64, 64, 330}} {
		if testing.Short() {
			x.heads = min(x.heads, 3)
		}
		p := device.MLA{Heads: x.heads, Nope: x.nope, V: x.v, Rank: rank, BlockTokens: 16}
		b := newProblem(c, uint64(i), p, tensor.BF16, x.cache, tensor.BF16, seqs)
		rng, chosen := rand.New(rand.NewPCG(3, 3)), make([]int32, b.rows*x.topK)
		all := slices.Concat(b.prefill, b.decode)
		for _, s := range all {
			for r := range s.Len {
				row, ctx := chosen[(s.Row+r)*x.topK:][:x.topK], s.Pos+r+1
				for i := range row {
					row[i] = -1
				}
				n := min(x.topK, ctx)
				if ctx > x.topK {
					n -= ctx % 3
				}
				for i, p := range rng.Perm(ctx)[:n] {
					row[i] = int32(p)
				}
				slices.Sort(row[:n])
			}
		}
		list := c.I32(chosen, b.rows, x.topK)
		run := func(each int) []float32 {
			out := b.out(tensor.F32)
			c.Run(func(l *launch.List) {
				for first := 0; first < b.rows; first += each {
					some := Rows{First: first, Count: min(each, b.rows-first)}
					Latents(l, c.Info(), out, b.q, b.kv, b.kvb, list, b.table, some, c.Alloc(LatentScratch(some, x.topK, b.p)), b.p)
				}
				some := Rows{Decode: true, Count: len(b.decode)}
				Latents(l, c.Info(), out, b.q, b.kv, b.kvb, list, b.table, some, c.Alloc(LatentScratch(some, x.topK, b.p)), b.p)
			})
			return c.Floats(out)
		}
		want := make([]float32, b.rows*b.p.Heads*b.p.V)
		ref.SparseMLA(want, b.query, b.cached, b.weights, chosen, x.topK, all, b.p)
		got := run(b.rows)
		compare(t, x.cache.String(), got, want, epsMMA)
		if i == 0 || !testing.Short() {
			sameBits(t, "three rows at a time", run(3), got)
		}
	}
}
