//go:build cuda

package elem

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

// TestMixWeights: weights of any number of streams, and those before the head. Streams are large and small.
func TestMixWeights(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(27, 1))
	for i, s := range []struct{ rows, streams, cols, gap int }{{1, 4, 64, 0}, {3, 4, 33, 3}, {5, 3, 8, 0}, {2, 40, 5, 0}, {2, 1, 16, 8}} {
		p := device.StreamMix{Streams: s.streams, Iterations: 1 + 10*(i%3), Eps: 1e-6, NormEps: 1e-5}
		for _, n := range []int{p.Width(), p.Streams} {
			for _, dt := range types {
				x, z := cudatest.Normal(rng, s.rows*s.streams*s.cols), cudatest.Normal(rng, s.rows*n)
				for j := range x {
					x[j] *= float32(int(1) << (3 * (j % 3)))
				}
				for j := range z {
					z[j] *= 30
				}
				base, scale := cudatest.Normal(rng, n), cudatest.Normal(rng, 3)
				if n == p.Streams {
					scale = scale[:1]
				}
				in, out := put(c, dt, x, s.rows, s.streams*s.cols, s.gap), put(c, f32, z, s.rows, n, s.gap)
				bm, sm := c.F32(base, 1, n), c.F32(scale, 1, len(scale))
				c.Run(func(l *launch.List) { MixWeights(l, out, in, bm, sm, p) })
				want := slices.Clone(z)
				ref.MixWeights(want, rounded(dt, x), base, scale, p)
				if err := kerneltest.Compare(c.Floats(out), want, n, kerneltest.Relative(want, 512, 1e-6)); err != nil {
					t.Errorf("%+v of %+v: %v", s, p, err)
				}
				gapsKept(t, c, "weights", out)
			}
		}
	}
}

// TestMixedInput: the streams, their weights and the input of a block agree with the operators one by one.
func TestMixedInput(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(28, 1))
	for i, s := range []struct{ rows, h int }{{1, 64}, {5, 192}, {35, 128}, {2, 4160}} {
		p := device.StreamMix{Streams: 4, Iterations: 20, Eps: 1e-6, NormEps: 1e-5}
		outs, dt, n := p.Width(), types[i%2], 4*s.h
		x, y, by := cudatest.Normal(rng, s.rows*n), cudatest.Normal(rng, s.rows*s.h), cudatest.Normal(rng, s.rows*20)
		w, base, scale, norm := cudatest.Normal(rng, outs*n), cudatest.Normal(rng, outs), cudatest.Normal(rng, 3), cudatest.Normal(rng, s.h)
		if i == 2 { // before the head
			outs, w, base, scale = 4, w[:4*n], base[:4], scale[:1]
		}
		m := &Mixed{X: put(c, f32, x, s.rows, n, 8), W: c.F32(w, outs, n), Base: c.F32(base, 1, outs), Scale: c.F32(scale, 1, len(scale)),
			Weights: c.Strided(f32, s.rows, outs, outs+2), Norm: c.F32(norm, 1, s.h), Eps: 1e-6, StreamMix: p}
		want := x
		if i > 0 {
			m.Y, m.By = put(c, dt, y, s.rows, s.h, 8), put(c, f32, by, s.rows, 20, 4)
			want = make([]float32, len(x))
			ref.SpreadMixed(want, rounded(dt, y), by, x, 4, s.h)
		}
		weights, sum := make([]float32, s.rows*outs), make([]float32, s.rows*s.h)
		ref.MatMul(weights, want, w, s.rows, outs, n)
		ref.MixWeights(weights, want, base, scale, p)
		read := make([]float32, s.rows*4)
		for j := range read {
			read[j] = weights[j/4*outs+j%4]
		}
		ref.CollapseWhole(sum, want, read, 4, s.h)
		ref.RMSNorm(sum, sum, norm, 1e-6)
		out := c.Strided(dt, s.rows, s.h, s.h+8)
		c.Run(func(l *launch.List) { MixedInput(l, out, m, c.Alloc(MixedScratch(s.rows, s.h, outs))) })
		for _, r := range []struct {
			what string
			got  launch.Mat
			want []float32
			size float64
		}{{"streams", m.X, want, 1e-6}, {"weights", m.Weights, weights, 1e-5}, {"input", out, sum, 1e-5}} {
			tol := within(r.got.DType, r.want, 64)
			if err := kerneltest.Compare(c.Floats(r.got), r.want, r.got.Cols, func(i int) float64 { return tol(i) + r.size*kerneltest.MaxAbs(r.want) }); err != nil {
				t.Errorf("%+v: %s: %v", s, r.what, err)
			}
			gapsKept(t, c, r.what, r.got)
		}
	}
}
