//go:build cuda

package mla

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// pooledRows is the rows of a batch: keys and gates, and what is kept of four sequences.
type pooledRows struct {
	p                  device.Index
	x, bias, tail, out []float32
	rows               int
}

const pooledSlots = 4

func newPooledRows(p device.Index, rows int) *pooledRows {
	rng := rand.New(rand.NewPCG(31, uint64(p.Pool)))
	return &pooledRows{p: p, rows: rows, x: cudatest.Normal(rng, rows*2*p.Dim), bias: cudatest.Normal(rng, p.Pool*p.Dim),
		tail: cudatest.Normal(rng, pooledSlots*p.Pool*2*p.Dim), out: make([]float32, rows*p.Dim)}
}

// run computes keys on a GPU one list after the other, and returns them and what is kept then.
func (r *pooledRows) run(c *cudatest.GPU, dt tensor.DType, prefill, decode [][]device.Span) (out, tail []float32) {
	p, upload := r.p, c.F32
	if dt == tensor.BF16 {
		upload = c.BF16
	}
	x, bias, kept := upload(r.x, r.rows, 2*p.Dim), c.F32(r.bias, p.Pool, p.Dim), c.F32(r.tail, pooledSlots*p.Pool, 2*p.Dim)
	to := c.Strided(tensor.F32, r.rows, p.Dim, p.Dim+3)
	for i := range prefill {
		words := make([]int32, spans.Words(len(prefill[i])+len(decode[i]), 0))
		spans.Put(words, prefill[i], decode[i])
		table := c.I32(words, 1, len(words))
		c.Run(func(l *launch.List) {
			PoolKeys(l, to, x, bias, kept, prefill[i], table, false, p)
			PoolKeys(l, to, x, bias, kept, decode[i], table, true, p)
		})
	}
	return c.Floats(to), c.Floats(kept)
}

// TestPoolKeys: keys of pools that end in prompts and in generated rows, that begin in a step before, and of none; in one step and in
// several with the same bits. A slot that is not there is left out.
func TestPoolKeys(t *testing.T) {
	c := cudatest.Open(t)
	for _, p := range []device.Index{{Dim: 32, Pool: 4}, {Dim: 65, Pool: 7}, {Dim: 3, Pool: 1}, {Dim: 5, Pool: 150}} {
		prompts := []device.Span{{Row: 1, Len: 160, Pos: 0, Slot: 2}, {Row: 162, Len: 131, Pos: 5 * p.Pool / 4, Slot: 0}, {Row: 294, Len: 2, Pos: p.Pool + 1, Slot: 3}}
		generated := []device.Span{{Row: 0, Len: 1, Pos: 2*p.Pool - 1, Slot: 1}}
		for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
			if dt == tensor.BF16 && p.Pool > 4 && testing.Short() {
				continue
			}
			r := newPooledRows(p, 300)
			got, kept := r.run(c, dt, [][]device.Span{prompts}, [][]device.Span{generated})
			if dt == tensor.BF16 {
				_, r.x = kerneltest.BF16(r.x)
			}
			tail := slices.Clone(r.tail)
			for _, list := range [][]device.Span{prompts, generated} {
				ref.PoolKeys(r.out, r.x, r.bias, tail, list, p)
				for _, s := range list {
					if err := kerneltest.Compare(got[s.Row*p.Dim:][:s.Len*p.Dim], r.out[s.Row*p.Dim:][:s.Len*p.Dim], p.Dim, kerneltest.Relative(r.out, 64, 1e-6)); err != nil {
						t.Errorf("%+v, %s, %+v: %v", p, dt, s, err)
					}
				}
			}
			if err := kerneltest.SameBits(kept, tail); err != nil {
				t.Errorf("%+v, %s: kept: %v", p, dt, err)
			}
			var parts [][]device.Span
			for at, n := range map[int]int{0: 3, 3: 1, 4: 129, 133: 27} {
				parts = append(parts, []device.Span{{Row: 1 + at, Len: n, Pos: at, Slot: 2}})
			}
			slices.SortFunc(parts, func(a, b []device.Span) int { return a[0].Pos - b[0].Pos })
			cut, _ := r.run(c, dt, append(parts, nil), append(make([][]device.Span, len(parts)), []device.Span{{Row: 299, Len: 1, Pos: 3, Slot: pooledSlots}}))
			s := prompts[0]
			if err := kerneltest.SameBits(cut[s.Row*p.Dim:][:s.Len*p.Dim], got[s.Row*p.Dim:][:s.Len*p.Dim]); err != nil {
				t.Errorf("%+v, %s, in several steps: %v", p, dt, err)
			}
			if v := cut[299*p.Dim]; v == v {
				t.Errorf("%+v: a row of no slot has a key", p)
			}
		}
	}
}

// TestSelectPools: the choice of pools is the reference's, by the plain kernel and by the fast ones; small integers make every sum exact.
func TestSelectPools(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 700, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 6}, {past: 30, rows: 9}, {past: 3, rows: 1, decode: true}, {past: 2050, rows: 1, decode: true}}
	for i, p := range []device.Index{
		{Heads: 16, Dim: indexDim, TopK: 8, Pool: 4, BlockTokens: 16}, {Heads: 32, Dim: indexDim, TopK: 37, Pool: 3, BlockTokens: 16},
		{Heads: 3, Dim: 9, TopK: 5, Pool: 5, BlockTokens: 16}, {Heads: 2, Dim: 8, TopK: 6, Pool: 1, BlockTokens: 16},
	} {
		b := newProblem(c, 9, small, tensor.BF16, tensor.BF16, tensor.BF16, seqs)
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		integers := func(n, most int) []float32 {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(rng.IntN(2*most+1) - most)
			}
			return v
		}
		keys, q, weights := integers(b.slots*p.Dim, 2), integers(b.rows*p.Heads*p.Dim, 1), integers(b.rows*p.Heads, 3)
		cache := launch.KV{Mat: b.upload(tensor.BF16, keys, b.slots, p.Dim)}
		qm, wm := b.upload(tensor.BF16, q, b.rows, p.Heads*p.Dim), b.upload(tensor.F32, weights, b.rows, p.Heads)
		want := make([]int32, b.rows*p.Positions())
		ref.Select(want, q, weights, keys, slices.Concat(b.prefill, b.decode), p)
		check := func(what string, f func(l *launch.List, out launch.Mat)) {
			out := c.I32(make([]int32, b.rows*p.Positions()), b.rows, p.Positions())
			c.Run(func(l *launch.List) { f(l, out) })
			got := cudatest.Download[int32](c, out.At, len(want))
			for row := range b.rows {
				if g, w := got[row*p.Positions():][:p.Positions()], want[row*p.Positions():][:p.Positions()]; !slices.Equal(g, w) {
					t.Fatalf("%+v, %s: row %d chose\n%v, want\n%v", p, what, row, g, w)
				}
			}
		}
		check("plain", func(l *launch.List, out launch.Mat) {
			Select(l, out, qm, wm, cache, b.table, false, p)
			Select(l, out, qm, wm, cache, b.table, true, p)
		})
		if !CanSelect(qm, cache, p) {
			continue
		}
		const pitch = 1024
		scratch := c.Alloc(SelectScratch(b.rows, pitch))
		check("fast", func(l *launch.List, out launch.Mat) {
			SelectRows(l, c.Info(), out, qm, wm, cache, b.table, Rows{Count: b.rows}, pitch, scratch, p)
			SelectRows(l, c.Info(), out, qm, wm, cache, b.table, Rows{Decode: true, Count: len(b.decode)}, pitch, scratch, p)
		})
	}
}
