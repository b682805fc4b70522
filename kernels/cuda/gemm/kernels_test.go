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

// runnable are the variants that the GPU has.
func runnable(c *cudatest.GPU) (v []Variant) {
	for i := Auto + 1; i < variants; i++ {
		if i.runs(c.Info()) {
			v = append(v, i)
		}
	}
	return v
}

// dense computes x [m, k] * transposed w [n, k], and for each element the sum of magnitudes,
// which bounds its rounding errors.
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

// near compares element by element. float32 sums of k products are off by at most k * 2^-24 of
// their size (tensor cores truncate instead of rounding: twice that), bfloat16 results by 2^-9 of
// themselves.
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

// strided makes a poisoned matrix with gaps that holds x [rows, cols] as BF16.
func strided(c *cudatest.GPU, x []float32, rows, cols, gap int) launch.Mat {
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

// small are the sizes for every variant: {1,7,64,65,129,200} x {8,72,136,264} x
// {8,64,72,136,512}, with each value of each at least once.
var small = []Sizes{
	{M: 1, N: 8, K: 8}, {M: 7, N: 72, K: 64}, {M: 64, N: 136, K: 72}, {M: 65, N: 264, K: 136}, {M: 129, N: 72, K: 512},
	{M: 200, N: 264, K: 64}, {M: 1, N: 264, K: 136}, {M: 200, N: 8, K: 72},
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

// untouched fails if the gaps between rows were written.
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

// narrow is the GPU with the given number of multiprocessors, so few that a block has several
// tiles.
func narrow(c *cudatest.GPU) launch.GPU {
	gpu := c.Info()
	gpu.SMs = 1
	return gpu
}

// A row has the same bits whatever the other rows are, and whatever number of tiles its block
// computed before. 1,100 rows are more than a band of tiles.
func TestRowsAreIndependent(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(3, 2))
	const m, n, k = 1100, 136, 72
	xs, ws := cudatest.Normal(rng, m*k), cudatest.Normal(rng, n*k)
	want, size := dense(xs, ws, m, n, k)
	x, w := c.BF16(xs, m, k), c.BF16(ws, n, k)
	for _, v := range runnable(c) {
		run := func(from, to int) ([]byte, []float32) {
			out := c.Mat(tensor.F32, to-from, n)
			c.Run(func(l *launch.List) {
				BF16(l, narrow(c), out, x.RowRange(from, to), w, Options{Plan: Plan{Variant: v}})
			})
			return cudatest.Download[byte](c, out.At, 4*n*(to-from)), c.Floats(out)
		}
		all, values := run(0, m)
		near(t, values, want, size, k, tensor.F32)
		for _, r := range [][2]int{{0, 1}, {1, 8}, {63, 128}, {900, 1029}, {1099, 1100}} {
			if part, _ := run(r[0], r[1]); !bytes.Equal(part, all[4*n*r[0]:4*n*r[1]]) {
				t.Errorf("%v: rows %v alone have other bits", v, r)
			}
		}
	}
}

// The kernels of a build sum in the same order, so the choice by M changes no bit of a row.
func TestVariantsAgree(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(10, 2))
	const m, n, k = 130, 264, 200
	x, w := c.BF16(cudatest.Normal(rng, m*k), m, k), c.BF16(cudatest.Normal(rng, n*k), n, k)
	first := map[bool][]byte{}
	for _, v := range runnable(c) {
		out := c.Mat(tensor.F32, m, n)
		c.Run(func(l *launch.List) { BF16(l, c.Info(), out, x, w, Options{Plan: Plan{Variant: v}}) })
		got, build := cudatest.Download[byte](c, out.At, 4*m*n), shapes[v].hopper
		if first[build] == nil {
			first[build] = got
		} else if !bytes.Equal(got, first[build]) {
			t.Errorf("%v has other bits than the kernels before it", v)
		}
	}
}

func TestAccumulateAndParts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(4, 2))
	const m, n, k = 65, 72, 264
	xs, ws, was := cudatest.Normal(rng, m*k), cudatest.Normal(rng, n*k), cudatest.Normal(rng, m*n)
	want, size := dense(xs, ws, m, n, k)
	sum := make([]float64, m*n)
	for i := range sum {
		sum[i] = want[i] + float64(was[i])
		size[i] += math.Abs(float64(was[i]))
	}
	x, w := c.BF16(xs, m, k), c.BF16(ws, n, k)
	for _, v := range runnable(c) {
		for _, parts := range []int{1, 2, 3, 5} {
			scratch := c.Alloc(4 * parts * m * n)
			o := Options{Plan: Plan{v, parts}, Scratch: scratch}
			for _, out := range []launch.Mat{c.Mat(tensor.F32, m, n), c.Strided(tensor.BF16, m, n, n+8)} {
				var runs [2][]byte
				for i := range runs {
					c.Run(func(l *launch.List) { BF16(l, c.Info(), out, x, w, o) })
					near(t, c.Floats(out), want, size, k, out.DType)
					runs[i] = cudatest.Download[byte](c, out.At, ((m-1)*out.Stride+n)*out.DType.Size())
				}
				if !bytes.Equal(runs[0], runs[1]) {
					t.Fatalf("%v: another run, other bytes", o.Plan)
				}
			}
			o.Accumulate = true
			out := c.F32(was, m, n)
			c.Run(func(l *launch.List) { BF16(l, c.Info(), out, x, w, o) })
			near(t, c.Floats(out), sum, size, k, tensor.F32)
		}
	}
}

// The absorbed products of latent attention: one matrix per head, heads next to each other in a
// row.
func TestBatch(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 2))
	const heads, m, n, k = 3, 66, 72, 136
	xs, ws := cudatest.Normal(rng, m*heads*k), cudatest.Normal(rng, heads*n*k)
	x, w := c.BF16(xs, m, heads*k), c.BF16(ws, heads*n, k)
	for i, v := range runnable(c) {
		dt := []tensor.DType{tensor.BF16, tensor.F32}[i%2]
		out := c.Mat(dt, m, heads*n)
		c.Run(func(l *launch.List) {
			BF16(l, narrow(c), out.ColRange(0, n), x.ColRange(0, k), w.RowRange(0, n),
				Options{Batch: heads, OutStep: n, XStep: k, WStep: n * k, Plan: Plan{Variant: v}})
		})
		for h := range heads {
			part := make([]float32, 0, m*k)
			for r := range m {
				part = append(part, xs[(r*heads+h)*k:][:k]...)
			}
			want, size := dense(part, ws[h*n*k:][:n*k], m, n, k)
			near(t, c.Floats(out.ColRange(h*n, (h+1)*n)), want, size, k, dt)
		}
	}
}

func TestSwiGLU(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(6, 2))
	for _, v := range runnable(c) {
		for i, s := range []Sizes{{M: 1, N: 8, K: 8}, {M: 65, N: 136, K: 72}, {M: 130, N: 72, K: 136}, {M: 64, N: 264, K: 64}} {
			m, f, k := s.M, s.N, s.K
			xs, gs, us := cudatest.Normal(rng, m*k), cudatest.Normal(rng, f*k), cudatest.Normal(rng, f*k)
			x, gate, up := strided(c, xs, m, k, 8), strided(c, gs, f, k, 8), strided(c, us, f, k, 8)
			want, gateSize := dense(xs, gs, m, f, k)
			ups, upSize := dense(xs, us, m, f, k)
			size := make([]float64, m*f)
			for i, g := range want {
				// silu's slope is below 1.1; __expf and the division err by a few ulp more
				silu := g / (1 + math.Exp(-g))
				size[i] = 1.1*gateSize[i]*math.Abs(ups[i]) + math.Abs(silu)*upSize[i] + 8*math.Abs(silu*ups[i])
				want[i] = silu * ups[i]
			}
			out := c.Strided([]tensor.DType{tensor.BF16, tensor.F32}[i%2], m, f, f+8)
			c.Run(func(l *launch.List) { SwiGLU(l, narrow(c), out, x, gate, up, Options{Plan: Plan{Variant: v}}) })
			near(t, c.Floats(out), want, size, k, out.DType)
		}
	}
}
