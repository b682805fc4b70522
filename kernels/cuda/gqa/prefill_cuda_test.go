//go:build cuda

package gqa

import (
	"fmt"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// gpus are the GPU itself, and the GPU without Hopper's kernels.
func gpus(c *cudatest.GPU) []launch.GPU {
	older := c.Info()
	older.Hopper = false
	if c.Info().Hopper {
		return []launch.GPU{c.Info(), older}
	}
	return []launch.GPU{older}
}

func (b *problem) runPrefill(gpu launch.GPU, dt tensor.DType) []float32 {
	out, turn := b.out(dt), b.c.I32(make([]int32, 1), 1, 1)
	b.c.Run(func(l *launch.List) { Prefill(l, gpu, out, b.q, b.kv, b.sinkMat, b.prefill, b.table, turn.At, b.p) })
	if n := cudatest.Download[int32](b.c, turn.At, 1)[0]; n != 0 {
		panic(fmt.Sprint("the turn is left at ", n))
	}
	return b.c.Floats(out)
}

func TestPrefill(t *testing.T) {
	c := cudatest.Open(t)
	for _, x := range []struct {
		cache, out                 tensor.DType
		heads, kvHeads, dim, block int
		seqs                       []seq
	}{
		{tensor.BF16, tensor.BF16, 2, 1, 64, 16, []seq{{rows: 1}, {rows: 63}, {past: 64, rows: 65}}},
		{tensor.BF16, tensor.F32, 4, 2, 128, 64, []seq{{past: 70, rows: 130}, {rows: 5}}},
		{tensor.BF16, tensor.BF16, 1, 1, 256, 16, []seq{{past: 3, rows: 66}, {past: 500, rows: 2}}},
		{tensor.F8E4M3, tensor.BF16, 8, 1, 64, 100, []seq{{past: 129, rows: 20}, {rows: 64}}},
		{tensor.F8E4M3, tensor.F32, 3, 3, 128, 16, []seq{{past: 300, rows: 129}}},
		{tensor.F8E4M3, tensor.BF16, 2, 1, 256, 64, []seq{{rows: 100}}},
		{tensor.I8, tensor.BF16, 2, 1, 64, 1, []seq{{past: 190, rows: 17}}},
		{tensor.I8, tensor.F32, 4, 2, 128, 16, []seq{{rows: 65}, {past: 257, rows: 3}}},
		{tensor.I8, tensor.BF16, 2, 2, 256, 16, []seq{{past: 31, rows: 70}}},
		{tensor.BF16, tensor.BF16, 2, 1, 512, 16, []seq{{past: 3, rows: 66}, {past: 200, rows: 2}, {rows: 1}}},
		{tensor.F8E4M3, tensor.F32, 1, 1, 512, 64, []seq{{past: 33, rows: 70}}},
		{tensor.I8, tensor.BF16, 2, 2, 512, 100, []seq{{past: 120, rows: 17}}},
		{tensor.F8E4M3, tensor.BF16, 4, 1, 512, 16, []seq{{past: 130, rows: 65}, {rows: 129}}},
	} {
		b := newProblem(c, uint64(x.dim), x.heads, x.kvHeads, x.dim, x.block, x.cache, x.seqs)
		want := b.want()
		for _, gpu := range gpus(c) {
			compare(t, fmt.Sprintf("%s, %d heads of %d, Hopper %v", x.cache, x.heads, x.dim, gpu.Hopper), b.runPrefill(gpu, x.out), want, epsMMA)
		}
	}
}

// A row has the same bits however its prompt was cut into batches, and whichever block computes
// it.
func TestPrefillInvariance(t *testing.T) {
	c := cudatest.Open(t)
	for dim, dt := range map[int]tensor.DType{64: tensor.BF16, 128: tensor.F8E4M3, 256: tensor.BF16, 512: tensor.BF16} {
		b := newProblem(c, 9, 2, 1, dim, 16, dt, []seq{{past: 20, rows: 40}, {past: 60, rows: 141}})
		for _, gpu := range gpus(c) {
			b.putTable()
			all := b.runPrefill(gpu, tensor.F32)
			for _, sms := range []int{1, 3, 100} {
				few := gpu
				few.SMs = sms
				sameBits(t, fmt.Sprint(sms, " multiprocessors"), b.runPrefill(few, tensor.F32), all)
			}
			s, list := b.prefill[1], b.prefill
			one, two := s, s
			one.Len, two.Len = 77, s.Len-77
			two.Row, two.Pos = s.Row+77, s.Pos+77
			for _, part := range []device.Span{one, two} {
				b.prefill = []device.Span{part}
				b.putTable()
				sameBits(t, "in parts", b.of(b.runPrefill(gpu, tensor.F32), part), b.of(all, part))
			}
			b.prefill = list
		}
	}
}

// Prompts and generated rows in one batch: each call writes its own rows.
func TestMixed(t *testing.T) {
	c := cudatest.Open(t)
	b := newProblem(c, 7, 4, 2, 64, 16, tensor.BF16,
		[]seq{{past: 69, rows: 1, decode: true}, {rows: 5}, {past: 129, rows: 1, decode: true}, {past: 20, rows: 20}})
	out, slow := b.out(tensor.F32), b.out(tensor.F32)
	scratch := c.Alloc(DecodeScratch(b.items(), b.p))
	c.Run(func(l *launch.List) {
		Prefill(l, c.Info(), out, b.q, b.kv, launch.Mat{}, b.prefill, b.table, 0, b.p)
		Decode(l, c.Info(), out, b.q, b.kv, launch.Mat{}, b.table, 2, b.items(), scratch, b.p)
		Plain(l, slow, b.q, b.kv, launch.Mat{}, b.table, false, b.p)
		Plain(l, slow, b.q, b.kv, launch.Mat{}, b.table, true, b.p)
	})
	compare(t, "plain", c.Floats(slow), b.want(), 1e-2) // the queries were rounded
	compare(t, "fast", c.Floats(out), b.want(), epsMMA)
}
