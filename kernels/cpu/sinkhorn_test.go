package cpu_test

import (
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

func TestMixedStreams(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, x := range [][3]int{{1, 1, 2}, {17, 3, 37}, {9, 4, 300}} {
			rows, n, h := x[0], x[1], x[2]
			p := device.StreamMix{Streams: n, Iterations: 3, Eps: 1e-3, NormEps: 1e-6}
			r := kerneltest.Rand(uint64(rows))
			streams, row := kerneltest.Normal(r, rows*n*h, 1), kerneltest.Normal(r, rows*h, 1)
			for _, cols := range []int{n, p.Width()} {
				base, scale := kerneltest.Normal(r, cols, 1), kerneltest.Normal(r, 3, 1)
				if cols == n {
					scale = scale[:1]
				}
				got := kerneltest.Normal(r, rows*cols, 2)
				want := slices.Clone(got)
				ref.MixWeights(want, streams, base, scale, p)
				d.MixWeights(s, f32s(d, got, rows, cols), f32s(d, streams, rows, n*h), f32s(d, base, 1, cols), f32s(d, scale, 1, len(scale)), p)
				near(t, "MixWeights", got, want, cols)
			}

			weights := kerneltest.Normal(r, rows*(n+n*n), 1)
			m := f32s(d, weights, rows, n+n*n)
			got, want := make([]float32, rows*h), make([]float32, rows*h)
			first := make([]float32, 0, rows*n) // the first n of each row
			for w := range slices.Chunk(weights, n+n*n) {
				first = append(first, w[:n]...)
			}
			ref.CollapseWhole(want, streams, first, n, h)
			d.Collapse(s, f32s(d, got, rows, h), f32s(d, streams, rows, n*h), m.ColRange(0, n))
			near(t, "Collapse", got, want, h)
			ref.CollapseWhole(want, streams, nil, n, h)
			d.Collapse(s, f32s(d, got, rows, h), f32s(d, streams, rows, n*h), device.Mat{})
			near(t, "Collapse to the mean", got, want, h)

			wide, wanted := slices.Clone(streams), make([]float32, rows*n*h)
			ref.SpreadMixed(wanted, row, weights, streams, n, h)
			to := f32s(d, wide, rows, n*h)
			d.Spread(s, to, f32s(d, row, rows, h), m, to)
			near(t, "Spread onto itself", wide, wanted, h)
		}
		bad := f32s(d, make([]float32, 6), 1, 6)
		panicsWith(t, "MixWeights", func() {
			d.MixWeights(s, bad, bad, bad, bad.ColRange(0, 3), device.StreamMix{Streams: 2, Iterations: 1})
		})
		panicsWith(t, "Spread", func() { d.Spread(s, bad, bad.ColRange(0, 3), bad.ColRange(0, 6), device.Mat{}) })
		panicsWith(t, "Collapse", func() { d.Collapse(s, bad.ColRange(0, 3), bad, bad.ColRange(0, 4)) })
	})
}
