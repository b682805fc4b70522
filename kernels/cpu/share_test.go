package cpu_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// BenchmarkShareOfRead streams weights that are far larger than any cache and compares with plain
// reads taken in turn with it, window by window, so that what else the machine does meets both.
func BenchmarkShareOfRead(b *testing.B) {
	const h, f, experts = 2048, 1408, 16 // 277 MB of BF16
	for _, threads := range []int{1, 2} {
		for _, tokens := range []int{1, 8} {
			b.Run(fmt.Sprintf("threads%d/tokens%d", threads, tokens), func(b *testing.B) {
				d, s := open(b, cpu.Options{Threads: threads})
				var bank []device.Expert
				for range experts {
					matrix := func(rows, cols int) device.Mat {
						m, err := device.AllocMat(d, tensor.BF16, rows, cols)
						if err != nil {
							b.Fatal(err)
						}
						b.Cleanup(m.Buf.Free)
						for i, values := 0, device.HostSlice[uint16](m); i < len(values); i++ {
							values[i] = uint16(0x3c00 + i%64) // touches every page
						}
						return m
					}
					bank = append(bank, device.Expert{Gate: matrix(f, h), Up: matrix(f, h), Down: matrix(h, f)})
				}
				x, y := f32s(d, kerneltest.Normal(kerneltest.Rand(1), tokens*h, 1), tokens, h), f32s(d, make([]float32, tokens*h), tokens, h)
				var own, read []float64
				for b.Loop() {
					for e := range experts {
						start := time.Now()
						d.FFN(s, y, x, bank[e])
						own = append(own, 3*h*f*2/float64(time.Since(start).Nanoseconds()))
					}
					rate, err := d.ReadBandwidth(threads)
					if err != nil {
						b.Fatal(err)
					}
					read = append(read, rate.Median/1e9)
				}
				slices.Sort(own)
				slices.Sort(read)
				b.ReportMetric(own[len(own)/2], "P50-GB/s")
				b.ReportMetric(own[len(own)*9/10], "P90-GB/s")
				b.ReportMetric(read[len(read)/2], "READ-GB/s")
				b.ReportMetric(own[len(own)/2]/read[len(read)/2], "share")
			})
		}
	}
}
