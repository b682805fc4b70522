//go:build cuda

package gqa

import (
	"fmt"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func (b *problem) items() int {
	items := 0
	for _, s := range b.decode {
		items += spans.Items(s.Pos + s.Len)
	}
	return WindowItems(len(b.decode), items, b.p)
}

// decodeWithin runs Decode with these bounds and a poisoned output.
func (b *problem) decodeWithin(gpu launch.GPU, dt tensor.DType, rows, items int) []float32 {
	b.q.Rows = max(b.q.Rows, rows)
	out := b.out(dt)
	out.Rows = b.q.Rows
	scratch := b.c.Alloc(DecodeScratch(items, b.p))
	b.c.Run(func(l *launch.List) { Decode(l, gpu, out, b.q, b.kv, b.sinkMat, b.table, rows, items, scratch, b.p) })
	b.q.Rows, out.Rows = b.rows, b.rows
	return b.c.Floats(out)
}

func TestDecode(t *testing.T) {
	c := cudatest.Open(t)
	for _, x := range []struct {
		cache, out                 tensor.DType
		heads, kvHeads, dim, block int
		seqs                       []seq
	}{
		{tensor.BF16, tensor.BF16, 4, 2, 64, 16, contexts(1, 63, 64, 65, 200)},
		{tensor.BF16, tensor.F32, 16, 2, 128, 64, contexts(17, 1000)},
		{tensor.BF16, tensor.BF16, 16, 1, 256, 16, contexts(65, 1)},
		{tensor.F8E4M3, tensor.BF16, 8, 1, 64, 64, contexts(1000, 3)},
		{tensor.F8E4M3, tensor.F32, 5, 5, 128, 16, contexts(130, 16, 33)},
		{tensor.F8E4M3, tensor.BF16, 6, 2, 256, 100, contexts(64, 600)},
		{tensor.I8, tensor.BF16, 32, 2, 64, 1, contexts(1, 190)},
		{tensor.I8, tensor.F32, 7, 1, 128, 16, contexts(63, 520)},
		{tensor.I8, tensor.BF16, 2, 2, 256, 16, contexts(150)},
		{tensor.BF16, tensor.F32, 20, 1, 64, 16, contexts(70)}, // more heads than a block takes
		{tensor.BF16, tensor.BF16, 8, 1, 512, 16, contexts(65, 1, 530)},
		{tensor.F8E4M3, tensor.F32, 11, 1, 512, 64, contexts(130)},
		{tensor.I8, tensor.BF16, 4, 2, 512, 100, contexts(63, 17)},
	} {
		b := newProblem(c, uint64(x.heads), x.heads, x.kvHeads, x.dim, x.block, x.cache, x.seqs)
		what := fmt.Sprintf("%s, %d heads of %d of %d", x.cache, x.heads, x.dim, x.kvHeads)
		compare(t, what, b.decodeWithin(c.Info(), x.out, len(b.decode)+3, b.items()+3), b.want(), epsMMA)
	}
}

// A row has the same bits alone and among others, for every distribution and every join of its
// items, and in every run.
func TestDecodeInvariance(t *testing.T) {
	c := cudatest.Open(t)
	for dim, dt := range map[int]tensor.DType{64: tensor.F8E4M3, 128: tensor.BF16, 256: tensor.I8, 512: tensor.BF16} {
		b := newProblem(c, 3, 4, 2, dim, 16, dt, contexts(70, 1100, 5, 520)) // 2, 17, 1 and 8 items
		all := b.decodeWithin(c.Info(), tensor.F32, 4, b.items())
		compare(t, dt.String(), all, b.want(), epsMMA)
		sameBits(t, "again", b.decodeWithin(c.Info(), tensor.F32, 4, b.items()), all)
		for _, sms := range []int{1, 2, 3, 5, 9, 100} {
			gpu := c.Info()
			gpu.SMs = sms
			sameBits(t, fmt.Sprint(sms, " multiprocessors"), b.decodeWithin(gpu, tensor.F32, 6, b.items()+3), all)
		}
		for _, s := range b.decode {
			b.decode = []device.Span{s}
			b.putTable()
			sameBits(t, "alone", b.of(b.decodeWithin(c.Info(), tensor.F32, 1, b.items()), s), b.of(all, s))
		}
	}
}

// Items beyond the bound are left out, and their rows are NaN; other rows are unchanged.
func TestDecodeBeyondItsBound(t *testing.T) {
	c := cudatest.Open(t)
	b := newProblem(c, 4, 2, 1, 64, 16, tensor.BF16, contexts(9, 100, 20))
	all := b.decodeWithin(c.Info(), tensor.F32, 3, 4)
	got := b.decodeWithin(c.Info(), tensor.F32, 3, 3) // one, two and one item
	sameBits(t, "two rows", got[:2*128], all[:2*128])
	for i, v := range got[2*128:] {
		if v == v {
			t.Fatalf("value %d of a row without room is %v", i, v)
		}
	}
}
