//go:build cuda

package mla

import (
	"fmt"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// epsMMA: queries in latent space, weights and the sum of latents are rounded to bf16
// (2^-9 each, relative to sums of size 1), and so is the result.
const epsMMA = 3. / 256

// runDecode runs Decode with a poisoned output and bounds that are not tight.
func (b *problem) runDecode(dt tensor.DType) []float32 {
	return b.decodeWithin(b.c.Info(), dt, len(b.decode)+3, b.items()+3)
}

func (b *problem) items() int {
	items := 0
	for _, s := range b.decode {
		items += spans.Items(s.Pos + s.Len)
	}
	return items
}

func (b *problem) decodeWithin(gpu launch.GPU, dt tensor.DType, rows, items int) []float32 {
	b.q.Rows = max(b.q.Rows, rows)
	out := b.out(dt)
	out.Rows = b.q.Rows
	defer func() { b.q.Rows = b.rows }()
	scratch := b.c.Alloc(DecodeScratch(rows, items, b.p))
	b.c.Run(func(l *launch.List) {
		Decode(l, gpu, out, b.q, b.kv, b.kvb, b.table, rows, items, scratch, b.p)
	})
	out.Rows = b.rows
	return b.c.Floats(out)
}

func contexts(n ...int) []seq {
	var s []seq
	for _, ctx := range n {
		s = append(s, seq{past: ctx - 1, rows: 1, decode: true})
	}
	return s
}

func TestDecode(t *testing.T) {
	c := cudatest.Open(t)
	cases := []struct {
		cache  tensor.DType
		out    tensor.DType
		heads  int
		blocks int
		seqs   []seq
	}{
		{tensor.BF16, tensor.BF16, 2, 16, contexts(1, 63, 64, 65, 200)},
		{tensor.BF16, tensor.F32, 18, 64, contexts(129)},
		{tensor.F8E4M3, tensor.BF16, 2, 64, contexts(65, 600, 1)},
		{tensor.F8E4M3, tensor.F32, 16, 16, contexts(130)},
		{tensor.I8, tensor.BF16, 2, 16, contexts(1, 190)},
		{tensor.BF16, tensor.F32, 1, 16, contexts(1, 2, 3, 140, 5, 6, 7, 8, 9, 10, 11)}, // more rows than merge takes at a time
		{tensor.F8E4M3, tensor.BF16, 1, 64, contexts(1100, 3)},                          // nine items
	}
	for _, x := range cases {
		p := lite
		p.Heads, p.BlockTokens = x.heads, x.blocks
		b := newProblem(c, uint64(x.heads), p, tensor.BF16, x.cache, tensor.BF16, x.seqs)
		compare(t, x.cache.String(), b.runDecode(x.out), b.want(), epsMMA)
	}
}

// A row has the same bits alone, among others, on few multiprocessors (where blocks have no room
// for the sums of several items), and in every run.
func TestDecodeInvariance(t *testing.T) {
	c := cudatest.Open(t)
	long, multiprocessors := 600, []int{1, 2, 3, 20}
	if testing.Short() {
		long, multiprocessors = 300, []int{2, 20}
	}
	for heads, dt := range map[int]tensor.DType{2: tensor.F8E4M3, 17: tensor.BF16, 1: tensor.I8} {
		p := lite
		p.Heads = heads
		b := newProblem(c, 3, p, tensor.BF16, dt, tensor.BF16, contexts(70, long, 5)) // two, many and one item
		all := b.runDecode(tensor.F32)
		compare(t, dt.String(), all, b.want(), epsMMA)
		sameBits(t, "again", b.runDecode(tensor.F32), all)
		for _, sms := range multiprocessors {
			gpu := c.Info()
			gpu.SMs = sms
			sameBits(t, "on few multiprocessors", b.decodeWithin(gpu, tensor.F32, 3, 20), all)
			gpu.SharedMax = decodeShared
			sameBits(t, "without room for sums", b.decodeWithin(gpu, tensor.F32, 3, 21), all)
		}
		cols := b.p.Heads * b.p.V
		list := b.decode
		for i, s := range list {
			b.decode = []device.Span{s}
			b.putTable()
			sameBits(t, "alone", b.runDecode(tensor.F32)[i*cols:(i+1)*cols], all[i*cols:(i+1)*cols])
			sameBits(t, "the only one", b.decodeWithin(c.Info(), tensor.F32, 1, b.items())[i*cols:(i+1)*cols], all[i*cols:(i+1)*cols])
		}
	}
}

// A row has the same bits alone and among 32 others.
func TestDecodeAmongMany(t *testing.T) {
	c := cudatest.Open(t)
	p := lite
	p.Heads = 1
	n := []int{1100}
	step := 4
	if testing.Short() {
		step = 1
	}
	for i := range 32 {
		n = append(n, 1+i*i*step/4)
	}
	b := newProblem(c, 5, p, tensor.BF16, tensor.F8E4M3, tensor.BF16, contexts(n...))
	gpu := c.Info()
	gpu.SMs = 7
	all := b.decodeWithin(gpu, tensor.BF16, len(n), b.items())
	b.decode = b.decode[:1]
	b.putTable()
	sameBits(t, "alone", b.decodeWithin(c.Info(), tensor.BF16, 1, b.items())[:p.V], all[:p.V])
}

// Bits do not depend on the distribution of the items, nor on the kernels that join them.
func TestDecodeShares(t *testing.T) {
	c := cudatest.Open(t)
	p := lite
	p.Heads = 1
	b := newProblem(c, 6, p, tensor.BF16, tensor.F8E4M3, tensor.BF16, contexts(520, 70, 1100, 1030, 5, 512, 700)) // 9, 2, 18, 17, 1, 8 and 11 items
	gpu := c.Info()
	gpu.SharedMax = decodeShared
	all := b.decodeWithin(gpu, tensor.F32, 7, b.items())
	compare(t, "without room for sums", all, b.want(), epsMMA)
	counts := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 30, 70}
	if testing.Short() {
		counts = []int{1, 4, 7, 13, 70}
	}
	for _, sms := range counts {
		gpu := c.Info()
		gpu.SMs = sms
		sameBits(t, fmt.Sprint(sms), b.decodeWithin(gpu, tensor.F32, 7, b.items()), all)
	}
}

// Items beyond the bound are left out, and their rows are NaN; other rows are unchanged.
func TestDecodeBeyondItsBound(t *testing.T) {
	c := cudatest.Open(t)
	p := lite
	p.Heads = 1
	b := newProblem(c, 4, p, tensor.BF16, tensor.BF16, tensor.BF16, contexts(9, 100, 20))
	all := b.runDecode(tensor.F32)
	got := b.decodeWithin(c.Info(), tensor.F32, 3, 3) // one, two and one item
	sameBits(t, "two rows", got[:2*p.V], all[:2*p.V])
	for i, v := range got[2*p.V:] {
		if v == v {
			t.Fatalf("value %d of a row without room is %v", i, v)
		}
	}
}
