//go:build cuda

package gqa

import (
	"fmt"
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

// choose makes lists of n positions for all rows: as many in each list of a row, rising, with -1 behind them. Rows that see no
// more than n list all.
func (b *problem) choose(rng *rand.Rand, n int) []int32 {
	lists := max(1, b.p.Lists)
	chosen := make([]int32, b.rows*lists*n)
	for _, s := range b.all() {
		for r := range s.Len {
			sees := s.Pos + r + 1
			count := min(n, sees)
			if sees > n {
				count -= rng.IntN(min(n, 5))
			}
			for list := range lists {
				at := chosen[((s.Row+r)*lists+list)*n:][:n]
				for i := range at {
					at[i] = -1
				}
				for i, p := range rng.Perm(sees)[:count] {
					at[i] = int32(p)
				}
				slices.Sort(at[:count])
			}
		}
	}
	return chosen
}

// wantLists returns the reference's results for lists of n positions.
func (b *problem) wantLists(chosen []int32, n int) []float32 {
	want := make([]float32, b.rows*b.p.Heads*b.p.HeadDim)
	ref.SparseGQA(want, b.query, b.cached, chosen, n*max(1, b.p.Lists), b.all(), b.p)
	return want
}

// TestPlainLists: rows see what they list, whatever the sizes and types.
func TestPlainLists(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 150, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 3}, {past: 4, rows: 6}, {past: 3, rows: 1, decode: true}}
	for _, x := range []struct {
		cache                 tensor.DType
		heads, kvHeads, lists int
		dim, n                int
	}{{tensor.F32, 6, 2, 2, 24, 7}, {tensor.BF16, 4, 4, 2, 8, 140}, {tensor.I8, 3, 1, 0, 5, 1}, {tensor.F8E4M3, 4, 2, 1, 32, 12}} {
		b := newProblem(c, 5, x.heads, x.kvHeads, x.dim, 16, x.cache, seqs)
		b.p.Lists = x.lists
		chosen := b.choose(rand.New(rand.NewPCG(6, 6)), x.n)
		list, out := c.I32(chosen, b.rows, len(chosen)/b.rows), b.out(tensor.F32)
		q := c.F32(b.query, b.rows, x.heads*x.dim)
		c.Run(func(l *launch.List) {
			PlainLists(l, out, q, b.kv, list, b.table, false, b.p)
			PlainLists(l, out, q, b.kv, list, b.table, true, b.p)
		})
		compare(t, x.cache.String(), c.Floats(out), b.wantLists(chosen, x.n), 1e-5)
	}
}

// TestLists: rows of prompts and generated rows see what they list, and a row's bits do not depend on the rows beside it.
func TestLists(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 200, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 1}, {past: 66, rows: 5}, {past: 3, rows: 1, decode: true}, {past: 560, rows: 1, decode: true}}
	for i, x := range []struct {
		cache                 tensor.DType
		heads, kvHeads, lists int
		dim, n, least         int
	}{
		{tensor.BF16, 6, 2, 2, 128, 70, 70}, {tensor.F8E4M3, 16, 1, 0, 128, 520, 0}, {tensor.I8, 4, 4, 4, 128, 70, 68}, {tensor.BF16, 24, 2, 1, 256, 70, 0}, {tensor.I8, 18, 1, 1, 128, 65, 0},
	} {
		b := newProblem(c, uint64(i), x.heads, x.kvHeads, x.dim, 16, x.cache, seqs)
		b.p.Lists = x.lists
		chosen := b.choose(rand.New(rand.NewPCG(3, 3)), x.n)
		list := c.I32(chosen, b.rows, len(chosen)/b.rows)
		sparse := 0
		for _, s := range b.prefill {
			sparse += s.Len - min(max(x.least-s.Pos, 0), s.Len)
		}
		run := func(each, of int, far bool) []float32 { // prompts have `of` items; 0: one for each row
			out := b.out(tensor.F32)
			items := max(of, ListItems(max(each, len(b.decode)), x.n))
			scratch := c.Alloc(ListsScratch(max(each, len(b.decode)), items, x.n, b.p))
			var near elem.Near
			if far {
				near = elem.NewNear(&b.kv, max(each, len(b.decode)), x.n, c.Alloc)
			}
			c.Run(func(l *launch.List) {
				PlainLists(l, out, b.q, b.kv, list, b.table, false, b.p) // also the rows that see all
				for first := 0; first < sparse; first += each {
					Lists(l, c.Info(), out, b.q, b.kv, list, b.table, Rows{First: first, Count: min(each, sparse-first), Least: x.least}, of, scratch, b.p, near)
				}
				Lists(l, c.Info(), out, b.q, b.kv, list, b.table, Rows{Decode: true, Count: len(b.decode)}, items, scratch, b.p, near)
			})
			return c.Floats(out)
		}
		for _, of := range []int{0, ListItems(max(sparse, 2), x.n)} {
			got := run(max(sparse, 1), of, false)
			compare(t, fmt.Sprintf("%s, heads of %d, %d items", x.cache, x.dim, of), got, b.wantLists(chosen, x.n), epsMMA)
			sameBits(t, "two rows at a time", run(2, of, false), got)
			sameBits(t, "from copies of the rows", run(2, of, true), got)
		}
	}
}

// TestBlockKeys: the keys of the blocks that rows complete take the places of their last tokens, and no other row changes.
func TestBlockKeys(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 7))
	seqs := []seq{{past: 15, rows: 1, decode: true}, {rows: 1}, {past: 6, rows: 27}, {past: 4, rows: 1, decode: true}, {rows: 3}}
	for _, x := range []struct {
		p    device.BlockIndex
		dt   tensor.DType
		norm tensor.DType
		eps  float64
	}{
		{device.BlockIndex{Dim: 24, Block: 4, Rope: device.Rope{Dim: 8}}, tensor.F32, tensor.F32, 1e-5},
		{device.BlockIndex{Dim: 128, Block: 3, Rope: device.Rope{Dim: 128, Interleaved: true}}, tensor.BF16, tensor.BF16, 1. / 256},
		{device.BlockIndex{Dim: 5, Block: 1, Rope: device.Rope{Dim: 2, Offset: 3}}, tensor.F8E4M3, tensor.F32, 1. / 8},
		{device.BlockIndex{Dim: 200, Block: 2, Rope: device.Rope{Dim: 64}}, tensor.I8, tensor.BF16, 1. / 40},
	} {
		p := x.p
		p.Heads, p.Chosen, p.Eps, p.BlockTokens = 1, 1, 1e-6, 16
		p.Rope.Heads, p.Rope.HeadDim = 1, p.Dim
		b := &problem{c: c, p: device.GQA{KVHeads: 1, HeadDim: p.Dim, BlockTokens: 16}} // a row has a key, then as much that is not read
		b.place(rng, seqs)
		b.fill(rng, x.dt)
		norm, angles := cudatest.Normal(rng, p.Dim), cudatest.Normal(rng, 40*p.Rope.Dim)
		w := c.F32(norm, 1, p.Dim)
		if x.norm == tensor.BF16 {
			w = c.BF16(norm, 1, p.Dim)
			norm = c.Floats(w)
		}
		cache, raw := b.kv, make([]float32, b.slots*p.Dim)
		cache.Cols = p.Dim
		for i := range raw {
			raw[i] = b.cached[i/p.Dim*2*p.Dim+i%p.Dim]
		}
		table := c.F32(angles, 40, p.Rope.Dim)
		want := slices.Clone(raw)
		rows, slots := ref.BlockKeys(raw, norm, angles, b.all(), p)
		for i, slot := range slots {
			copy(want[int(slot)*p.Dim:][:p.Dim], rows[i*p.Dim:])
		}
		c.Run(func(l *launch.List) {
			MakeBlockKeys(l, b.rows, cache, w, table, b.table, false, p)
			MakeBlockKeys(l, b.rows, cache, w, table, b.table, true, p)
		})
		got := b.keys(cache)
		for i := range want {
			if made := slices.Contains(slots, int32(i/p.Dim)); made || want[i] != want[i] {
				continue
			}
			if got[i] != want[i] {
				t.Fatalf("%s: value %d of slot %d changed from %v to %v", x.dt, i%p.Dim, i/p.Dim, want[i], got[i])
			}
		}
		for _, slot := range slots {
			most := 0.0
			for _, v := range want[int(slot)*p.Dim:][:p.Dim] {
				most = max(most, float64(max(v, -v)))
			}
			compare(t, fmt.Sprintf("%s, slot %d", x.dt, slot), got[int(slot)*p.Dim:][:p.Dim], want[int(slot)*p.Dim:][:p.Dim], x.eps*max(1, most))
		}
	}
}

// keys reads the rows of a cache.
func (b *problem) keys(cache launch.KV) []float32 {
	size := cache.DType.Size()
	raw := cudatest.Download[byte](b.c, cache.At, cache.Rows*cache.Stride*size)
	out := make([]float32, cache.Rows*cache.Cols)
	var scales []float32
	if cache.DType == tensor.I8 {
		scales = cudatest.Download[float32](b.c, cache.Scales.At, cache.Scales.Rows*cache.Scales.Stride)
	}
	for i := range out {
		r, col := i/cache.Cols, i%cache.Cols
		at := raw[(r*cache.Stride+col)*size:]
		if cache.DType == tensor.I8 {
			out[i] = float32(int8(at[0])) * scales[r*cache.Scales.Stride+col/cache.Group]
		} else if err := tensor.Widen(out[i:i+1], cache.DType, at[:size]); err != nil {
			panic(err)
		}
	}
	return out
}

// TestSelectBlocks: the choice is the reference's, ties included, by plain and fast kernels, however the rows are cut; small integers
// make every score exact.
func TestSelectBlocks(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 700, rows: 1, decode: true}, {rows: 1}, {past: 127, rows: 3}, {past: 38, rows: 26}, {past: 3, rows: 1, decode: true}, {past: 3001, rows: 1, decode: true}, {past: 255, rows: 1, decode: true}}
	if testing.Short() {
		seqs[3].rows, seqs[5].past = 18, 400
	}
	for i, x := range []struct {
		p  device.BlockIndex
		dt tensor.DType
	}{
		{device.BlockIndex{Heads: 4, Dim: 128, Block: 4, Chosen: 9}, tensor.BF16},
		{device.BlockIndex{Heads: 8, Dim: 128, Block: 1, Chosen: 70}, tensor.F8E4M3},
		{device.BlockIndex{Heads: 2, Dim: 128, Block: 7, Chosen: 1}, tensor.BF16},
		{device.BlockIndex{Heads: 3, Dim: 20, Block: 3, Chosen: 40}, tensor.F32},
		{device.BlockIndex{Heads: 4, Dim: 128, Block: 33, Chosen: 3, Local: 1}, tensor.BF16},
		{device.BlockIndex{Heads: 1, Dim: 128, Block: 4, Chosen: 11, Local: 3}, tensor.F8E4M3},
		{device.BlockIndex{Heads: 8, Dim: 128, Block: 16, Chosen: 2, Local: 2}, tensor.BF16},
		{device.BlockIndex{Heads: 5, Dim: 9, Block: 6, Chosen: 4, Local: 1}, tensor.F32},
	} {
		if testing.Short() && slices.Contains([]int{1, 2, 6, 7}, i) {
			continue
		}
		p := x.p
		p.BlockTokens = 16
		rng := rand.New(rand.NewPCG(4, uint64(i)))
		b := &problem{c: c, p: device.GQA{KVHeads: 1, HeadDim: 1, BlockTokens: 16}}
		b.place(rng, seqs)
		integers := func(n, zeros int) []float32 {
			v := make([]float32, n)
			for i := range v {
				if rng.IntN(zeros) == 0 {
					v[i] = float32(rng.IntN(5) - 2)
				}
			}
			return v
		}
		keys, query := integers(b.slots*p.Dim, 1), integers(b.rows*p.Heads*p.Dim, 1+i%2*20)
		cache := launch.KV{Mat: b.integers(x.dt, keys, p.Dim)}
		q := c.BF16(query, b.rows, p.Heads*p.Dim)
		want := make([]int32, b.rows*p.Width())
		ref.SelectBlocks(want, query, keys, b.all(), p)
		for _, cut := range []struct {
			rows, pitch, sms int
			plain            bool
		}{{b.rows, (3002/p.Block + 4) &^ 3, 132, false}, {3, 4096, 3, false}, {b.rows, 4096, 3, true}} {
			gpu := c.Info()
			gpu.SMs = cut.sms
			out := c.I32(make([]int32, b.rows*p.Width()), b.rows, p.Width())
			scratch := c.Alloc(BlocksScratch(max(cut.rows, len(b.decode)), cut.pitch, p))
			c.Run(func(l *launch.List) {
				for first := 0; first < b.rows; first += cut.rows {
					n := min(cut.rows, b.rows-first)
					SelectBlocks(l, gpu, cut.plain, out, q, cache, b.table, Rows{First: first, Count: n}, cut.pitch, scratch, p)
				}
				SelectBlocks(l, gpu, cut.plain, out, q, cache, b.table, Rows{Decode: true, Count: 3}, cut.pitch, scratch, p)
				SelectBlocks(l, gpu, cut.plain, out, q, cache, b.table, Rows{Decode: true, First: 3, Count: 1}, cut.pitch, scratch, p)
			})
			got := cudatest.Download[int32](c, out.At, len(want))
			for row := range b.rows {
				if g, w := got[row*p.Width():][:p.Width()], want[row*p.Width():][:p.Width()]; !slices.Equal(g, w) {
					t.Fatalf("%+v, %+v: row %d chose\n%v, want\n%v", x, cut, row, g, w)
				}
			}
		}
	}
}

// integers makes a cache of index keys of small integers.
func (b *problem) integers(dt tensor.DType, v []float32, dim int) launch.Mat {
	switch dt {
	case tensor.BF16:
		return b.c.BF16(v, b.slots, dim)
	case tensor.F32:
		return b.c.F32(v, b.slots, dim)
	}
	raw := make([]byte, len(v))
	for i := range v {
		raw[i] = map[float32]byte{0: 0, 1: 0x38, 2: 0x40, -1: 0xb8, -2: 0xc0}[v[i]]
	}
	return launch.Mat{At: b.c.Bytes(raw), DType: dt, Rows: b.slots, Cols: dim, Stride: dim}
}
