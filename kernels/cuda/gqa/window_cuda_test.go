//go:build cuda

package gqa

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// narrow gives the problem a window and, with sinks, a sink for each head. Positions that no row
// sees become NaN.
func (b *problem) narrow(window int, sinks bool) {
	b.p.Window = window
	b.fill(rand.New(rand.NewPCG(uint64(window), 3)), b.kv.DType)
	if b.sinks, b.sinkMat = nil, (launch.Mat{}); sinks {
		for h := range b.p.Heads {
			b.sinks = append(b.sinks, []float32{3, -2, 0, 1, 8, -9, 2, 4}[h%8])
		}
		b.sinkMat = b.c.F32(b.sinks, 1, b.p.Heads)
	}
}

// windows are a single key, fewer keys than a warp's, windows across the edges of blocks and tiles,
// the longest of one item, longer ones, and one beyond every context.
var windows = []int{1, 7, 64, 65, 128, 130, 512, 513, 700, 5000, 0}

// windowsOf returns the windows of the k-th problem: in short tests two, others for every problem.
func windowsOf(k int) []int {
	if !testing.Short() {
		return windows
	}
	return []int{windows[2*k%len(windows)], windows[(2*k+5)%len(windows)]}
}

func TestDecodeWindows(t *testing.T) {
	c := cudatest.Open(t)
	for k, x := range []struct {
		cache, out                 tensor.DType
		heads, kvHeads, dim, block int
		seqs                       []seq
	}{
		{tensor.BF16, tensor.BF16, 2, 2, 64, 16, contexts(1, 64, 65, 200, 1100)},
		{tensor.F8E4M3, tensor.BF16, 8, 1, 64, 64, contexts(1000, 3)},
		{tensor.I8, tensor.F32, 14, 1, 64, 16, contexts(129, 640)},
		{tensor.BF16, tensor.F32, 12, 1, 128, 100, contexts(650, 17)},
		{tensor.F8E4M3, tensor.BF16, 6, 2, 128, 16, contexts(63, 128, 770)},
		{tensor.I8, tensor.BF16, 32, 2, 128, 1, contexts(190, 1)},
		{tensor.BF16, tensor.BF16, 4, 2, 256, 16, contexts(63, 128, 1030)},
		{tensor.F8E4M3, tensor.F32, 16, 1, 256, 64, contexts(600, 3)},
		{tensor.I8, tensor.BF16, 6, 2, 256, 100, contexts(190, 65)},
	} {
		b := newProblem(c, uint64(x.heads), x.heads, x.kvHeads, x.dim, x.block, x.cache, x.seqs)
		for i, window := range windowsOf(k) {
			b.narrow(window, (i+k)%2 == 0)
			what := fmt.Sprintf("%s, %d heads of %d of %d, window %d", x.cache, x.heads, x.dim, x.kvHeads, window)
			compare(t, what, b.decodeWithin(c.Info(), x.out, len(b.decode)+3, b.items()+3), b.want(), epsMMA)
		}
	}
}

// A row in a window has the same bits alone and among others, for every distribution of the items.
func TestDecodeWindowInvariance(t *testing.T) {
	c := cudatest.Open(t)
	b := newProblem(c, 5, 4, 2, 64, 16, tensor.F8E4M3, contexts(70, 1300, 5, 520, 900))
	for _, window := range []int{100, 600} {
		b.narrow(window, true)
		list := b.decode
		b.putTable()
		all := b.decodeWithin(c.Info(), tensor.F32, len(list), b.items())
		for _, sms := range []int{1, 3, 100} {
			gpu := c.Info()
			gpu.SMs = sms
			sameBits(t, fmt.Sprint(sms, " multiprocessors"), b.decodeWithin(gpu, tensor.F32, len(list)+2, b.items()+3), all)
		}
		for _, s := range list {
			b.decode = []device.Span{s}
			b.putTable()
			sameBits(t, "alone", b.of(b.decodeWithin(c.Info(), tensor.F32, 1, b.items()), s), b.of(all, s))
		}
		b.decode = list
	}
}

func TestPrefillWindows(t *testing.T) {
	c := cudatest.Open(t)
	for k, x := range []struct {
		cache, out                 tensor.DType
		heads, kvHeads, dim, block int
		seqs                       []seq
	}{
		{tensor.BF16, tensor.BF16, 2, 1, 64, 16, []seq{{rows: 1}, {rows: 63}, {past: 64, rows: 65}}},
		{tensor.F8E4M3, tensor.BF16, 8, 1, 64, 100, []seq{{past: 129, rows: 20}, {rows: 64}}},
		{tensor.I8, tensor.BF16, 2, 1, 64, 1, []seq{{past: 190, rows: 17}}},
		{tensor.BF16, tensor.F32, 4, 2, 128, 64, []seq{{past: 70, rows: 130}, {rows: 5}}},
		{tensor.F8E4M3, tensor.F32, 3, 3, 128, 16, []seq{{past: 300, rows: 129}}},
		{tensor.I8, tensor.F32, 4, 2, 128, 16, []seq{{rows: 65}, {past: 257, rows: 3}}},
		{tensor.BF16, tensor.BF16, 2, 1, 256, 64, []seq{{past: 70, rows: 130}, {rows: 5}}},
		{tensor.F8E4M3, tensor.F32, 3, 3, 256, 16, []seq{{past: 300, rows: 67}}},
		{tensor.I8, tensor.BF16, 2, 1, 256, 100, []seq{{rows: 65}, {past: 257, rows: 3}}},
		{tensor.BF16, tensor.F32, 2, 1, 512, 64, []seq{{past: 70, rows: 130}, {rows: 5}}},
		{tensor.F8E4M3, tensor.BF16, 2, 2, 512, 16, []seq{{past: 300, rows: 67}}},
		{tensor.I8, tensor.BF16, 1, 1, 512, 100, []seq{{rows: 65}, {past: 257, rows: 3}}},
	} {
		b := newProblem(c, uint64(x.dim), x.heads, x.kvHeads, x.dim, x.block, x.cache, x.seqs)
		for i, window := range windowsOf(k) {
			b.narrow(window, (i+k)%2 == 0)
			want := b.want()
			for _, gpu := range gpus(c) {
				compare(t, fmt.Sprintf("%s, %d heads of %d, window %d, Hopper %v", x.cache, x.heads, x.dim, window, gpu.Hopper), b.runPrefill(gpu, x.out), want, epsMMA)
			}
		}
	}
}

// A row in a window has the same bits however its prompt was cut into batches.
func TestPrefillWindowInvariance(t *testing.T) {
	c := cudatest.Open(t)
	for dim, dt := range map[int]tensor.DType{64: tensor.BF16, 128: tensor.F8E4M3, 256: tensor.BF16, 512: tensor.I8} {
		b := newProblem(c, 9, 2, 1, dim, 16, dt, []seq{{past: 20, rows: 40}, {past: 190, rows: 141}})
		b.narrow(100, true)
		list := b.prefill
		for _, gpu := range gpus(c) {
			b.putTable()
			all := b.runPrefill(gpu, tensor.F32)
			s := list[1]
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
