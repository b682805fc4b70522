//go:build cuda

package mla

import (
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/plain"
	"krater/kernels/tensor"
)

// Prompts and generated rows in one batch: each call writes its own rows, the plain kernels give
// the same results, and queries may be some of the columns of a wider matrix.
func TestMixed(t *testing.T) {
	c := cudatest.Open(t)
	p := lite
	p.Heads = 1
	b := newProblem(c, 7, p, tensor.BF16, tensor.BF16, tensor.BF16,
		[]seq{{past: 69, rows: 1, decode: true}, {rows: 5}, {past: 129, rows: 1, decode: true}, {past: 20, rows: 20}})
	wide := c.Strided(tensor.BF16, b.rows, b.q.Cols, b.q.Cols+64)
	c.Run(func(l *launch.List) {
		for r := range b.rows {
			l.Copy(wide.RowRange(r, r+1).At, b.q.RowRange(r, r+1).At, int64(2*b.q.Cols))
		}
	})
	b.q = wide
	out, slow := b.out(tensor.F32), b.out(tensor.F32)
	scratch := c.Alloc(max(DecodeScratch(2, 5, p), PrefillScratch(2, 256, 256, p)))
	c.Run(func(l *launch.List) {
		expand := func(out, x launch.Mat, w launch.Weight) { plain.MatMul(l, out, x, w) }
		Prefill(l, c.Info(), out, b.q, b.kv, b.kvb, b.prefill, b.table, 256, scratch, expand, b.p)
		Decode(l, c.Info(), out, b.q, b.kv, b.kvb, b.table, 2, 5, scratch, b.p)
		PlainPrefill(l, slow, b.q, b.kv, b.kvb, b.table, b.p)
		PlainDecode(l, slow, b.q, b.kv, b.kvb, b.table, b.p)
	})
	want := b.want()
	compare(t, "plain", c.Floats(slow), want, epsF32)
	compare(t, "fast", c.Floats(out), want, epsMMA)
}
