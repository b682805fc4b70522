//go:build cuda

package gemm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// runnable are the variants the card has.
func runnable(c *cudatest.Card) (v []Variant) {
	for i := Auto + 1; i < variants; i++ {
		if i.runs(c.Info()) {
			v = append(v, i)
		}
	}
	return v
}

// dense is x [m, k] * transposed w [n, k], and for each element the sum of magnitudes, of
// which its rounding errors are a part.
func dense(x, w []float32, m, n, k int) (out, size []float64) {
	out, size = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for j := range n {
			var s, a float64
			for c, v := range x[i*k : i*k+k] {
				p := float64(v) * float64(w[j*k+c])
				s, a = s+p, a+math.Abs(p)
			}
			out[i*n+j], size[i*n+j] = s, a
		}
	}
	return out, size
}

// near compares element by element. float32 sums of k products err by at most k * 2^-24 of
// their size (tensor cores cut off instead of rounding: twice that); bfloat16 results by
// 2^-9 of themselves.
func near(t *testing.T, got []float32, want, size []float64, k int, dt tensor.DType) {
	t.Helper()
	for i, w := range want {
		bound := float64(k+8) * 0x1p-23 * size[i]
		if dt == tensor.BF16 {
			bound += 0x1p-8 * math.Abs(w)
		}
		if e := math.Abs(float64(got[i]) - w); !(e <= bound) {
			t.Fatalf("element %d of %d: %v, want %v within %.2g", i, len(want), got[i], w, bound)
		}
	}
}

// strided puts x [rows, cols] as BF16 into a poisoned matrix with gaps.
func strided(c *cudatest.Card, x []float32, rows, cols, gap int) launch.Mat {
	m := c.Strided(tensor.BF16, rows, cols, cols+gap)
	v := make([]uint16, (rows-1)*m.Stride+cols)
	for i := range v {
		v[i] = 0xffff
	}
	for r := range rows {
		for k := range cols {
			v[r*m.Stride+k] = tensor.F32ToBF16(x[r*cols+k])
		}
	}
	m.At = cudatest.Upload(c, v)
	return m
}

// small are the sizes that every variant sees: {1,7,64,65,129,200} x {8,72,136,264} x
// {8,64,72,136,512}, each value of each at least once.
var small = []Sizes{
	{1, 8, 8, 0}, {7, 72, 64, 0}, {64, 136, 72, 0}, {65, 264, 136, 0}, {129, 72, 512, 0}, {200, 264, 64, 0},
	{1, 264, 136, 0}, {200, 8, 72, 0},
}

func TestBF16(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, v := range runnable(c) {
		for i, s := range small {
			t.Run(fmt.Sprintf("%v/%dx%dx%d", v, s.M, s.N, s.K), func(t *testing.T) {
				xs, ws := cudatest.Normal(rng, s.M*s.K), cudatest.Normal(rng, s.N*s.K)
				want, size := dense(xs, ws, s.M, s.N, s.K)
				x, w := strided(c, xs, s.M, s.K, 8*(i%3)), strided(c, ws, s.N, s.K, 8*(i%2))
				out := c.Strided(tensor.BF16, s.M, s.N, s.N+8*(i%2))
				if i%2 == 0 {
					out = c.Strided(tensor.F32, s.M, s.N, s.N+2*(i%3))
				}
				before := cudatest.Download[byte](c, out.At, s.M*out.Stride*out.DType.Size())
				run := func() []byte {
					c.Run(func(l *launch.List) { BF16(l, c.Info(), out, x, w, Options{Plan: Plan{Variant: v}}) })
					return cudatest.Download[byte](c, out.At, len(before))
				}
				first := run()
				near(t, c.Floats(out), want, size, s.K, out.DType)
				untouched(t, before, first, out)
				for range 2 {
					if !bytes.Equal(run(), first) {
						t.Fatal("another run, other bytes")
					}
				}
			})
		}
	}
}

// untouched finds a write to the gaps between rows.
func untouched(t *testing.T, before, after []byte, m launch.Mat) {
	t.Helper()
	size := m.DType.Size()
	for r := range m.Rows {
		from, to := (r*m.Stride+m.Cols)*size, (r+1)*m.Stride*size
		if !bytes.Equal(before[from:to], after[from:to]) {
			t.Fatalf("wrote behind row %d", r)
		}
	}
}
