//go:build cuda

package mla

import (
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

const (
	epsF32  = 1e-5     // float32 sums
	epsBF16 = 1. / 256 // and the result rounded to bfloat16
)

func TestPlain(t *testing.T) {
	c := cudatest.Open(t)
	seqs := []seq{{past: 64, rows: 1, decode: true}, {past: 0, rows: 1}, {past: 127, rows: 9}, {past: 0, rows: 65}, {past: 199, rows: 1, decode: true}, {past: 0, rows: 1, decode: true}}
	for _, dt := range []struct{ q, cache, kvb tensor.DType }{
		{tensor.F32, tensor.F32, tensor.F32},
		{tensor.BF16, tensor.BF16, tensor.BF16},
		{tensor.BF16, tensor.F8E4M3, tensor.BF16},
		{tensor.F32, tensor.I8, tensor.BF16},
	} {
		b := newProblem(c, 5, small, dt.q, dt.cache, dt.kvb, seqs)
		out := b.out(dt.q)
		c.Run(func(l *launch.List) {
			PlainPrefill(l, out, b.q, b.kv, b.kvb, b.table, b.p)
			PlainDecode(l, out, b.q, b.kv, b.kvb, b.table, b.p)
		})
		eps := epsF32
		if dt.q == tensor.BF16 {
			eps = epsBF16
		}
		compare(t, dt.q.String()+" with a cache of "+dt.cache.String(), c.Floats(out), b.want(), eps)
	}
}

// Each call writes the rows of its own list, and no others.
func TestPlainLists(t *testing.T) {
	c := cudatest.Open(t)
	b := newProblem(c, 6, small, tensor.F32, tensor.F32, tensor.F32, []seq{{past: 3, rows: 1, decode: true}, {past: 0, rows: 2}, {past: 20, rows: 1, decode: true}})
	want := b.want()
	cols := b.p.Heads * b.p.V
	for _, decode := range []bool{false, true} {
		out := b.out(tensor.F32)
		c.Run(func(l *launch.List) {
			if decode {
				PlainDecode(l, out, b.q, b.kv, b.kvb, b.table, b.p)
			} else {
				PlainPrefill(l, out, b.q, b.kv, b.kvb, b.table, b.p)
			}
		})
		got := c.Floats(out)
		for row := range b.rows {
			mine := (row == 0 || row == 3) == decode
			if v := got[row*cols]; (v == v) != mine {
				t.Errorf("decode %v: row %d starts with %v", decode, row, v)
			}
			if mine {
				compare(t, "row", got[row*cols:(row+1)*cols], want[row*cols:(row+1)*cols], epsF32)
			}
		}
	}
}
