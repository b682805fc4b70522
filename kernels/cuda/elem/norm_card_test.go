//go:build cuda

package elem

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

// normShapes include rows with more than the elements that a block keeps in registers: 2*512, or
// 2*512*8 aligned ones.
var normShapes = append([]struct{ rows, cols, gap int }{{2, 1031, 0}, {1, 1600, 1}, {1, 8208, 0}, {2, 4160, 0}}, shapes...)

// ulps is a generous bound of the error of a sum over cols elements.
func sumUlps(cols int) float64 { return 8 + math.Sqrt(float64(cols)) }

func TestRMSNorm(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(4, 1))
	const eps = 1e-6
	for i, s := range normShapes {
		for j := range 4 {
			xt, ot, wt := types[j&1], types[j>>1&1], types[(i+j)%2]
			n := s.rows * s.cols
			x, delta, w, want := values(rng, n), values(rng, n), values(rng, s.cols), make([]float32, n)
			xm, wm := put(c, xt, x, s.rows, s.cols, s.gap), put(c, wt, w, 1, s.cols, 0)
			out := c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
			ref.RMSNorm(want, x, w, eps)
			c.Run(func(l *launch.List) { RMSNorm(l, out, xm, wm, eps) })
			check(t, c, "norm", out, want, sumUlps(s.cols))
			if xt == ot { // in place
				c.Run(func(l *launch.List) { RMSNorm(l, xm, xm, wm, eps) })
				if err := kerneltest.SameBits(c.Floats(xm), c.Floats(out)); err != nil {
					t.Fatalf("in place, %+v: %v", s, err)
				}
			}
			// With an addition: out where delta was, or apart.
			hidden, dm := put(c, f32, x, s.rows, s.cols, s.gap), put(c, xt, delta, s.rows, s.cols, s.gap)
			target := out
			if xt == ot {
				target = dm
			}
			sum := append([]float32(nil), x...)
			ref.AddRMSNorm(want, sum, delta, w, eps)
			c.Run(func(l *launch.List) { AddRMSNorm(l, target, hidden, dm, wm, eps) })
			check(t, c, "add norm", target, want, sumUlps(s.cols))
			check(t, c, "residual", hidden, sum, 0)
		}
	}
}

func TestWeightedSum(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 1))
	const eps = 1e-5
	nan := float32(math.NaN())
	for i, s := range normShapes {
		k := []int{1, 6, 9}[i%3]
		for j := range 4 {
			yt, ot, bt := types[j&1], types[j>>1&1], types[(i+j)%2]
			n := s.rows * s.cols
			y, base, x, w := values(rng, n*k), values(rng, n), values(rng, n), values(rng, s.cols)
			weights := make([]float32, s.rows*k)
			for i := range weights {
				weights[i] = rng.Float32()
			}
			want, delta := make([]float32, n), base
			bm := put(c, bt, base, s.rows, s.cols, s.gap)
			if j == 3 {
				bm, delta = launch.Mat{}, nil
			}
			if k > 1 { // an expert that did not run
				weights[k-1] = 0
			}
			ref.WeightedSum(want, y, weights, delta, k, s.cols)
			for i := range s.cols {
				if k > 1 {
					y[(k-1)*s.cols+i] = nan
				}
			}
			ym, wm := put(c, yt, y, s.rows*k, s.cols, s.gap), put(c, f32, weights, s.rows, k, s.gap)
			out := c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
			c.Run(func(l *launch.List) { WeightedSum(l, out, ym, wm, bm) })
			// Terms of both signs: an error is relative to their sizes, not to the sum.
			tol := within(ot, want, 4)
			size := kerneltest.MaxAbs(want) + 4096
			if err := kerneltest.Compare(c.Floats(out), want, s.cols, func(i int) float64 { return tol(i) + size*1e-6 }); err != nil {
				t.Fatalf("sum %+v: %v", s, err)
			}
			gapsKept(t, c, "sum", out)
			// One fused launch compared with separate ones.
			norm := put(c, bt, w, 1, s.cols, 0)
			d := put(c, f32, want, s.rows, s.cols, s.gap)
			fused, apart := put(c, f32, x, s.rows, s.cols, s.gap), put(c, f32, x, s.rows, s.cols, s.gap)
			one, two := c.Strided(ot, s.rows, s.cols, s.cols+s.gap), c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
			c.Run(func(l *launch.List) {
				AddRMSNorm(l, one, fused, d, norm, eps)
				Add(l, apart, d)
				RMSNorm(l, two, apart, norm, eps)
			})
			if err := kerneltest.SameBits(c.Floats(fused), c.Floats(apart)); err != nil {
				t.Fatalf("added %+v: %v", s, err)
			}
			if err := kerneltest.SameBits(c.Floats(two), c.Floats(one)); err != nil {
				t.Fatalf("added and normed %+v: %v", s, err)
			}
		}
	}
}

func TestGateRows(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 1))
	for i, s := range normShapes {
		for j := range 4 {
			ot, xt, wt := types[j&1], types[j>>1&1], types[(i+j)%2]
			for _, h := range []int{s.cols, 136, 45} { // rows of x need not be as wide
				before, x, w := values(rng, s.rows*s.cols), cudatest.Normal(rng, s.rows*h), cudatest.Normal(rng, h)
				for i := range w {
					w[i] /= float32(math.Sqrt(float64(h))) // the sigmoid is not flat there
				}
				out, xm, wm := put(c, ot, before, s.rows, s.cols, s.gap), put(c, xt, x, s.rows, h, s.gap), put(c, wt, w, 1, h, 0)
				want := c.Floats(out)
				ref.GateRows(want, c.Floats(xm), c.Floats(wm), s.cols)
				c.Run(func(l *launch.List) { GateRows(l, out, xm, wm) })
				check(t, c, "gated", out, want, sumUlps(h))
			}
		}
	}
}

// TestNormSpecial: a NaN or an infinity spoils its own row only; zeros stay zeros.
func TestNormSpecial(t *testing.T) {
	c := cudatest.Open(t)
	const cols = 72
	x, w := make([]float32, 4*cols), make([]float32, cols)
	for i := range w {
		w[i], x[i], x[cols+i] = 1, 2, 2
	}
	x[5], x[cols+71] = float32(math.NaN()), float32(math.Inf(1))
	for i := range cols {
		x[3*cols+i] = -3
	}
	xm, wm, out := c.F32(x, 4, cols), c.F32(w, 1, cols), c.Mat(f32, 4, cols)
	c.Run(func(l *launch.List) { RMSNorm(l, out, xm, wm, 1e-6) })
	got := c.Floats(out)
	for i := range cols {
		if v := got[i]; v == v {
			t.Fatalf("row with a NaN: %v", v)
		}
		if v := got[cols+i]; v == v && v != 0 {
			t.Fatalf("row with an infinity: %v", v)
		}
		if got[2*cols+i] != 0 || math.Abs(float64(got[3*cols+i])+1) > 1e-6 {
			t.Fatalf("good rows: %v, %v", got[2*cols+i], got[3*cols+i])
		}
	}
}

// TestRowsAlone: a row of a batch has the same bits as alone, in every run.
func TestRowsAlone(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(6, 1))
	for _, cols := range []int{200, 201} {
		const rows, eps = 5, 1e-6
		x, w := values(rng, rows*cols), put(c, bf16, values(rng, cols), 1, cols, 0)
		in, out := put(c, bf16, x, rows, cols, 0), c.Mat(f32, rows, cols)
		c.Run(func(l *launch.List) { RMSNorm(l, out, in, w, eps) })
		want := c.Floats(out)
		for r := range rows {
			for range 3 {
				alone := c.Mat(f32, 1, cols)
				one := put(c, bf16, x[r*cols:], 1, cols, 0)
				c.Run(func(l *launch.List) { RMSNorm(l, alone, one, w, eps) })
				if err := kerneltest.SameBits(c.Floats(alone), want[r*cols:(r+1)*cols]); err != nil {
					t.Fatalf("row %d: %v", r, err)
				}
			}
		}
	}
}

func TestLayerNorm(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(8, 1))
	const eps = 1e-6
	for i, s := range shapes {
		for j := range 4 {
			xt, ot, wt := types[j&1], types[j>>1&1], types[(i+j)%2]
			n := s.rows * s.cols
			x, w, b, want := values(rng, n), values(rng, s.cols), values(rng, s.cols), make([]float32, n)
			xm, wm, bm := put(c, xt, x, s.rows, s.cols, s.gap), put(c, wt, w, 1, s.cols, 0), put(c, types[j%2], b, 1, s.cols, 0)
			out := c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
			ref.LayerNorm(want, x, w, b, eps)
			c.Run(func(l *launch.List) { LayerNorm(l, out, xm, wm, bm, eps) })
			// Where scaled value and bias cancel, the error is that of the two.
			terms := slices.Clone(want)
			ref.LayerNorm(terms, x, w, make([]float32, s.cols), eps)
			for k := range terms {
				terms[k] = max(float32(math.Abs(float64(terms[k]))), float32(math.Abs(float64(want[k]))))
			}
			if err := kerneltest.Compare(c.Floats(out), want, s.cols, within(ot, terms, sumUlps(s.cols))); err != nil {
				t.Fatalf("layer norm, %+v: %v", s, err)
			}
			gapsKept(t, c, "layer norm", out)
		}
	}
}
