//go:build cuda

package mla

import (
	"fmt"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/plain"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// runPrefill runs Prefill with a poisoned output; the expansion is the plain product.
func (b *problem) runPrefill(gpu launch.GPU, dt tensor.DType, chunk int) []float32 {
	tiles, keys := 0, 0
	for i := range b.prefill {
		tiles, keys = tiles+spans.Tiles(&b.prefill[i]), keys+spans.Keys(&b.prefill[i])
	}
	out := b.out(dt)
	scratch := b.c.Alloc(PrefillScratch(tiles, keys, chunk, b.p))
	b.c.Run(func(l *launch.List) {
		expand := func(out, x launch.Mat, w launch.Weight) { plain.MatMul(l, out, x, w) }
		Prefill(l, gpu, out, b.q, b.kv, b.kvb, b.prefill, b.table, chunk, scratch, expand, b.p)
	})
	return b.c.Floats(out)
}

// gpus are this GPU and, if it is a Hopper, the same without Hopper's kernels.
func gpus(c *cudatest.GPU) []launch.GPU {
	all := []launch.GPU{c.Info()}
	if c.Info().Hopper {
		plain := c.Info()
		plain.Hopper = false
		all = append(all, plain)
	}
	return all
}

// epsExpanded: keys, values, weights and the result are rounded to bf16.
const epsExpanded = 3. / 256

func TestPrefill(t *testing.T) {
	c := cudatest.Open(t)
	cases := []struct {
		cache, out tensor.DType
		heads      int
		chunk      int
		seqs       []seq
	}{
		{tensor.BF16, tensor.BF16, 2, DefaultKeys, []seq{{rows: 1}, {rows: 63}, {past: 64, rows: 2}, {rows: 65}}},
		{tensor.F8E4M3, tensor.F32, 1, 128, []seq{{past: 30, rows: 170}, {past: 1, rows: 3}}},
		{tensor.I8, tensor.BF16, 1, DefaultKeys, []seq{{past: 3, rows: 20}}},
		{tensor.F32, tensor.BF16, 1, DefaultKeys, []seq{{past: 0, rows: 17}}},
	}
	for _, x := range cases {
		p := lite
		p.Heads = x.heads
		b := newProblem(c, uint64(x.chunk+x.heads), p, tensor.BF16, x.cache, tensor.BF16, x.seqs)
		want := b.want()
		for _, gpu := range gpus(c) {
			compare(t, fmt.Sprintf("%s, Hopper %v", x.cache, gpu.Hopper), b.runPrefill(gpu, x.out, x.chunk), want, epsExpanded)
		}
	}
}

// A row has the same bits in every run, for every number of keys that are expanded at a time, and
// however its prompt is cut.
func TestPrefillInvariance(t *testing.T) {
	c := cudatest.Open(t)
	p := lite
	p.Heads = 1
	b := newProblem(c, 9, p, tensor.BF16, tensor.BF16, tensor.BF16, []seq{{rows: 150}, {past: 10, rows: 2}})
	for _, gpu := range gpus(c) {
		t.Run(fmt.Sprintf("Hopper %v", gpu.Hopper), func(t *testing.T) { b.invariant(t, gpu) })
	}
}

func (b *problem) invariant(t *testing.T, gpu launch.GPU) {
	list := b.prefill
	defer func() { b.prefill = list; b.putTable() }()
	all := b.runPrefill(gpu, tensor.F32, DefaultKeys)
	sameBits(t, "again", b.runPrefill(gpu, tensor.F32, DefaultKeys), all)
	sameBits(t, "128 keys at a time", b.runPrefill(gpu, tensor.F32, 128), all)
	whole, cols := b.prefill[0], b.p.Heads*b.p.V
	for _, part := range [][2]int{{0, 70}, {70, whole.Len}} {
		b.prefill = []device.Span{{Row: part[0], Len: part[1] - part[0], Pos: part[0], Blocks: whole.Blocks}}
		b.putTable()
		got := b.runPrefill(gpu, tensor.F32, DefaultKeys)
		sameBits(t, "a piece of the prompt", got[part[0]*cols:part[1]*cols], all[part[0]*cols:part[1]*cols])
	}
}
