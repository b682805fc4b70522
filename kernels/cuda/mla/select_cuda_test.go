//go:build cuda

package mla

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// TestSelectRows: the choice is the reference's, ties included, however the rows are cut and whatever room they have; small
// integers make every sum exact. Some scores are not numbers.
func TestSelectRows(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 700, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 3}, {past: 38, rows: 6}, {past: 3, rows: 1, decode: true}, {past: 5000, rows: 1, decode: true}, {past: 255, rows: 1, decode: true}}
	for i, x := range []struct {
		dt          tensor.DType
		heads, topK int
		most        int // of a query's values: with few, many scores are equal
		pool        int
		entries     bool
	}{
		{tensor.BF16, 16, 40, 2, 0, false}, {tensor.F8E4M3, 64, 128, 2, 0, false}, {tensor.BF16, 32, 255, 1, 0, false}, {tensor.F8E4M3, 48, 1, 1, 0, false},
		{tensor.BF16, 16, 31, 2, 4, false}, {tensor.F8E4M3, 16, 33, 1, 4, true},
	} {
		p := device.Index{Heads: x.heads, Dim: indexDim, TopK: x.topK, Pool: x.pool, Entries: x.entries, BlockTokens: 16}
		width := p.Positions()
		b := newProblem(c, 9, small, tensor.BF16, tensor.BF16, tensor.BF16, seqs)
		rng := rand.New(rand.NewPCG(4, uint64(i)))
		integers := func(n, most, zeros int) []float32 {
			v := make([]float32, n)
			for i := range v {
				if rng.IntN(zeros) == 0 {
					v[i] = float32(rng.IntN(2*most+1) - most)
				}
			}
			return v
		}
		keys, q, weights := integers(b.slots*indexDim, 2, 1), integers(b.rows*p.Heads*indexDim, x.most, 1+i%2*40), integers(b.rows*p.Heads, 3, 1)
		weights[p.Heads-1] = float32(math.Inf(1)) // of the first generated row: its scores are infinite or not numbers
		cache := launch.KV{Mat: b.keys(x.dt, keys)}
		qm, wm := b.upload(tensor.BF16, q, b.rows, p.Heads*indexDim), b.upload(tensor.F32, weights, b.rows, p.Heads)
		want := make([]int32, b.rows*width)
		all := slices.Concat(b.prefill, b.decode)
		ref.Select(want, q, weights, keys, all, p)
		for _, cut := range []struct{ rows, pitch, sms int }{{b.rows, 8192, 132}, {3, 5120, 3}} {
			gpu := c.Info()
			gpu.SMs = cut.sms
			out := c.I32(make([]int32, b.rows*width), b.rows, width)
			scratch := c.Alloc(SelectScratch(cut.rows, cut.pitch))
			c.Run(func(l *launch.List) {
				for first := 0; first < b.rows; first += cut.rows {
					n := min(cut.rows, b.rows-first)
					SelectRows(l, gpu, out, qm, wm, cache, b.table, Rows{First: first, Count: n}, cut.pitch, scratch, p)
				}
				SelectRows(l, gpu, out, qm, wm, cache, b.table, Rows{Decode: true, Count: min(cut.rows, len(b.decode))}, cut.pitch, scratch, p)
				SelectRows(l, gpu, out, qm, wm, cache, b.table, Rows{Decode: true, First: min(cut.rows, len(b.decode)), Count: 1}, cut.pitch, scratch, p)
			})
			got := cudatest.Download[int32](c, out.At, len(want))
			for row := range b.rows {
				if g, w := got[row*width:][:width], want[row*width:][:width]; !slices.Equal(g, w) {
					t.Fatalf("%+v, %+v: row %d chose\n%v, want\n%v", x, cut, row, g, w)
				}
			}
		}
	}
}

// TestSelectOfMany: of more positions than a block keeps, the choice is the reference's: where few of them can be among the best, where
// all are equal, and where there is no memory to find out.
func TestSelectOfMany(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: topKept, rows: 1, decode: true}}
	if !testing.Short() {
		seqs = append(seqs, seq{past: 20003, rows: 1, decode: true}, seq{past: 150000, rows: 1, decode: true})
	}
	for i, x := range []struct {
		topK, equal int // equal: the number of positions that differ from the others; 0: none is like another
		shared      int
	}{{2040, 0, 0}, {50, 60, 0}, {100, 0, 0}, {2040, 0, 64 << 10}, {50, 20, 0}, {4000, 0, 0}} {
		if testing.Short() && i > 1 {
			break
		}
		p := device.Index{Heads: 16, Dim: indexDim, TopK: x.topK, BlockTokens: 16}
		b := newProblem(c, 9, small, tensor.BF16, tensor.BF16, tensor.BF16, seqs)
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		keys, q, weights := make([]float32, b.slots*indexDim), make([]float32, b.rows*p.Heads*indexDim), make([]float32, b.rows*p.Heads)
		for i := range q {
			q[i] = float32(rng.IntN(3) - 1)
		}
		for i := range weights {
			weights[i] = float32(rng.IntN(7) - 3)
		}
		for slot := range b.slots {
			if x.equal > 0 && rng.IntN(b.slots/b.rows) >= x.equal {
				continue
			}
			for i := range indexDim {
				keys[slot*indexDim+i] = float32(rng.IntN(5) - 2)
			}
		}
		want := make([]int32, b.rows*p.TopK)
		ref.Select(want, q, weights, keys, b.decode, p)
		cache, gpu := launch.KV{Mat: b.keys(tensor.F8E4M3, keys)}, c.Info()
		if x.shared > 0 {
			gpu.SharedMax = x.shared
		}
		qm, wm := b.upload(tensor.BF16, q, b.rows, p.Heads*indexDim), b.upload(tensor.F32, weights, b.rows, p.Heads)
		pitch := (seqs[len(seqs)-1].past + 128) / 128 * 128
		out := c.I32(make([]int32, b.rows*p.TopK), b.rows, p.TopK)
		scratch := c.Alloc(SelectScratch(b.rows, pitch))
		c.Run(func(l *launch.List) {
			SelectRows(l, gpu, out, qm, wm, cache, b.table, Rows{Decode: true, Count: b.rows}, pitch, scratch, p)
		})
		got := cudatest.Download[int32](c, out.At, len(want))
		for row := range b.rows {
			if g, w := got[row*p.TopK:][:p.TopK], want[row*p.TopK:][:p.TopK]; !slices.Equal(g, w) {
				t.Fatalf("%+v: row %d chose\n%v, want\n%v", x, row, g, w)
			}
		}
	}
}

// keys makes a cache of index keys of small integers.
func (b *problem) keys(dt tensor.DType, v []float32) launch.Mat {
	if dt == tensor.BF16 {
		return b.upload(dt, v, b.slots, indexDim)
	}
	raw := make([]byte, len(v))
	for i := range v {
		raw[i] = map[float32]byte{0: 0, 1: 0x38, 2: 0x40, -1: 0xb8, -2: 0xc0}[v[i]]
	}
	return launch.Mat{At: b.c.Bytes(raw), DType: dt, Rows: b.slots, Cols: indexDim, Stride: indexDim}
}

// TestSparseRows: rows of prompts and generated rows see what they have chosen, and a row's bits do not depend on the rows
// beside it.
func TestSparseRows(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 200, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 1}, {past: 67, rows: 5}, {past: 3, rows: 1, decode: true}, {past: 560, rows: 1, decode: true}}
	for i, x := range []struct {
		cache                tensor.DType
		heads, nope, v, topK int
	}{{tensor.BF16, 2, nope, vDim, 70}, {tensor.F8E4M3, 1, 192, 256, 520}, {tensor.F8E4M3, 17, nope, vDim, 70}, {tensor.I8, 1, 24, 68, 70}} {
		p := lite
		p.Heads, p.Nope, p.V = x.heads, x.nope, x.v
		b := newProblem(c, uint64(i), p, tensor.BF16, x.cache, tensor.BF16, seqs)
		rng, chosen := rand.New(rand.NewPCG(3, 3)), make([]int32, b.rows*x.topK)
		sparse, least := 0, x.topK
		if x.nope != nope {
			least = 0
		}
		for _, s := range slices.Concat(b.prefill, b.decode) {
			for r := range s.Len {
				row, ctx := chosen[(s.Row+r)*x.topK:][:x.topK], s.Pos+r+1
				for i := range row {
					row[i] = -1
				}
				for i, p := range rng.Perm(ctx)[:min(x.topK, ctx)] {
					row[i] = int32(p)
				}
				slices.Sort(row[:min(x.topK, ctx)])
				if ctx > least && !slices.ContainsFunc(b.decode, func(d device.Span) bool { return d.Row == s.Row }) {
					sparse++
				}
			}
		}
		list := c.I32(chosen, b.rows, x.topK)
		run := func(each int, far bool) []float32 {
			out := b.out(tensor.F32)
			items := SparseItems(max(each, len(b.decode)), x.topK)
			scratch := c.Alloc(SparseScratch(max(each, len(b.decode)), items, x.topK, b.p))
			var near elem.Near
			if far {
				near = elem.NewNear(&b.kv, max(each, len(b.decode)), x.topK, c.Alloc)
			}
			c.Run(func(l *launch.List) {
				Sparse(l, out, b.q, b.kv, b.kvb, list, b.table, false, b.p) // also the rows that see all
				for first := 0; first < sparse; first += each {
					SparseRows(l, c.Info(), out, b.q, b.kv, b.kvb, list, b.table, Rows{First: first, Count: min(each, sparse-first), Least: least}, items, scratch, b.p, near)
				}
				SparseRows(l, c.Info(), out, b.q, b.kv, b.kvb, list, b.table, Rows{Decode: true, Count: len(b.decode)}, items, scratch, b.p, near)
			})
			return c.Floats(out)
		}
		want := make([]float32, b.rows*b.p.Heads*b.p.V)
		ref.SparseMLA(want, b.query, b.cached, b.weights, chosen, x.topK, slices.Concat(b.prefill, b.decode), b.p)
		got := run(max(sparse, 1), false)
		compare(t, x.cache.String(), got, want, epsMMA)
		sameBits(t, "two rows at a time", run(2, false), got)
		sameBits(t, "from copies of the rows", run(2, true), got)
	}
}
