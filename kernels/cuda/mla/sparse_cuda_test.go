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

var sparseSeqs = []seq{{past: 150, rows: 1, decode: true}, {past: 0, rows: 1}, {past: 127, rows: 3}, {past: 4, rows: 6}, {past: 3, rows: 1, decode: true}}

// TestSparse: rows see what they have chosen, or all where they may see no more.
func TestSparse(t *testing.T) {
	const topK = 7
	c := cudatest.Open(t)
	for _, dt := range []struct{ q, cache, kvb tensor.DType }{
		{tensor.F32, tensor.F32, tensor.F32}, {tensor.BF16, tensor.BF16, tensor.BF16}, {tensor.F32, tensor.I8, tensor.BF16},
	} {
		b := newProblem(c, 9, small, dt.q, dt.cache, dt.kvb, sparseSeqs)
		rng, chosen := rand.New(rand.NewPCG(3, 3)), make([]int32, b.rows*topK)
		all := slices.Concat(b.prefill, b.decode)
		for _, s := range all {
			for r := range s.Len {
				row := chosen[(s.Row+r)*topK:][:topK]
				for i := range row {
					row[i] = -1
				}
				for i, p := range rng.Perm(s.Pos + r + 1)[:min(topK, s.Pos+r+1)] {
					row[i] = int32(p)
				}
			}
		}
		list, out := c.I32(chosen, b.rows, topK), b.out(dt.q)
		c.Run(func(l *launch.List) {
			Sparse(l, out, b.q, b.kv, b.kvb, list, b.table, false, b.p)
			Sparse(l, out, b.q, b.kv, b.kvb, list, b.table, true, b.p)
		})
		want := make([]float32, b.rows*b.p.Heads*b.p.V)
		ref.SparseMLA(want, b.query, b.cached, b.weights, chosen, topK, all, b.p)
		eps := epsF32
		if dt.q == tensor.BF16 {
			eps = epsBF16
		}
		compare(t, dt.q.String()+" with a cache of "+dt.cache.String(), c.Floats(out), want, eps)
	}
}

// TestSelect: the choice is the reference's, ties included; small integers make every sum exact.
func TestSelect(t *testing.T) {
	c := cudatest.Open(t)
	for _, p := range []device.Index{
		{Heads: 3, Dim: 16, TopK: 7, BlockTokens: 16}, {Heads: 9, Dim: 5, TopK: 140, BlockTokens: 16}, {Heads: 1, Dim: 3, TopK: 1, BlockTokens: 16},
		{Heads: 3, Dim: 16, TopK: 7, Pool: 4, BlockTokens: 16}, {Heads: 2, Dim: 8, TopK: 7, Pool: 4, Entries: true, BlockTokens: 16},
	} {
		for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
			b := newProblem(c, 9, small, dt, dt, dt, sparseSeqs)
			rng := rand.New(rand.NewPCG(4, 4))
			integers := func(n, most int) []float32 {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(rng.IntN(2*most+1) - most)
				}
				return v
			}
			keys, q, weights := integers(b.slots*p.Dim, 2), integers(b.rows*p.Heads*p.Dim, 2), integers(b.rows*p.Heads, 3)
			cache := launch.KV{Mat: b.upload(dt, keys, b.slots, p.Dim)}
			qm, wm := b.upload(dt, q, b.rows, p.Heads*p.Dim), b.upload(dt, weights, b.rows, p.Heads)
			out := c.I32(make([]int32, b.rows*p.Positions()), b.rows, p.Positions())
			c.Run(func(l *launch.List) {
				Select(l, out, qm, wm, cache, b.table, false, p)
				Select(l, out, qm, wm, cache, b.table, true, p)
			})
			want := make([]int32, b.rows*p.Positions())
			ref.Select(want, q, weights, keys, slices.Concat(b.prefill, b.decode), p)
			if got := cudatest.Download[int32](c, out.At, len(want)); !slices.Equal(got, want) {
				t.Errorf("%+v, %s: chose\n%v, want\n%v", p, dt, got, want)
			}
		}
	}
}
