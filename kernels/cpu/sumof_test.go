package cpu_test

import (
	"fmt"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// someIDs leaves out every third choice, and all of row 1.
func someIDs(rows, topK int) []int32 {
	ids := make([]int32, rows*topK)
	for i := range ids {
		if ids[i] = int32(i % 7); i%3 == 2 || i/topK == 1 {
			ids[i] = -1
		}
	}
	return ids
}

// TestWeightedSumOf: the bits of the plain loop at every level of instructions, over odd sizes,
// alone and shared among threads; rows that do not count may be NaN.
func TestWeightedSumOf(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, h := range []int{1, 3, 16, 45, 511, 512, 513, 1029} {
			for _, x := range [][2]int{{1, 1}, {1, 6}, {2, 3}, {9, 8}} {
				rows, topK := x[0], x[1]
				r := kerneltest.Rand(uint64(h*rows + topK))
				y, weights, ids := kerneltest.Normal(r, rows*topK*h, 1), kerneltest.Normal(r, rows*topK, 1), someIDs(rows, topK)
				want, got := make([]float32, rows*h), kerneltest.Guard[float32](rows*h, 4)
				ref.WeightedSumOf(want, y, weights, ids, topK, h)
				for i, id := range ids {
					for j := 0; id < 0 && j < h; j++ {
						y[i*h+j] = tensor.BF16ToF32(0x7fc0)
					}
				}
				d.WeightedSumOf(s, got.Data, f32s(d, y, rows*topK, h), weights, ids)
				if err := kerneltest.SameBits(got.Data, want); err != nil {
					t.Errorf("%d rows of %d, %d choices: %v", rows, h, topK, err)
				}
				if err := got.Check(); err != nil {
					t.Error(err)
				}
			}
		}
		y := f32s(d, make([]float32, 4*3), 4, 3)
		out, w, ids := make([]float32, 6), make([]float32, 4), make([]int32, 4)
		panicsWith(t, "WeightedSumOf", func() { d.WeightedSumOf(s, out[:5], y, w, ids) })
		panicsWith(t, "WeightedSumOf", func() { d.WeightedSumOf(s, out, y, w[:3], ids) })
		panicsWith(t, "WeightedSumOf", func() { d.WeightedSumOf(s, out, y, w, ids[:2]) })
	})
}

// BenchmarkWeightedSumOf measures the end of a host call, for several numbers of rows of
// DeepSeek-V2-Lite's width.
func BenchmarkWeightedSumOf(b *testing.B) {
	const topK, h = 6, 2048
	for _, rows := range []int{1, 8, 64} {
		y, weights, ids := make([]float32, rows*topK*h), make([]float32, rows*topK), make([]int32, rows*topK)
		out := make([]float32, rows*h)
		b.Run(fmt.Sprintf("rows=%d/loop", rows), func(b *testing.B) {
			for b.Loop() {
				plainSumOf(out, y, weights, ids, topK, h)
			}
		})
		for _, threads := range []int{1, 2} {
			d, err := cpu.New(cpu.Options{Threads: threads})
			if err != nil {
				b.Fatal(err)
			}
			s, err := d.NewStream()
			if err != nil {
				b.Fatal(err)
			}
			m := f32s(d, y, rows*topK, h)
			b.Run(fmt.Sprintf("rows=%d/threads=%d", rows, threads), func(b *testing.B) {
				for b.Loop() {
					d.WeightedSumOf(s, out, m, weights, ids)
				}
			})
			d.Close()
		}
	}
}

// plainSumOf goes row by row, as a compiler without vectors does best.
func plainSumOf(out, y, weights []float32, ids []int32, topK, h int) {
	for t := range len(out) / h {
		dst := out[t*h : (t+1)*h]
		clear(dst)
		for k := t * topK; k < (t+1)*topK; k++ {
			if ids[k] < 0 {
				continue
			}
			row := y[k*h : (k+1)*h][:len(dst)]
			for i := range dst {
				dst[i] += weights[k] * row[i]
			}
		}
	}
}
