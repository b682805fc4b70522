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
	"krater/kernels/tensor"
)

var types = []tensor.DType{f32, bf16}

// values returns n numbers of both signs that BF16 represents, a few of them extreme.
func values(rng *rand.Rand, n int) []float32 {
	x := cudatest.Normal(rng, n)
	for range n / 50 {
		x[rng.IntN(n)] *= 1 << 10
	}
	return x
}

// put makes a matrix [rows, cols] of x with a poisoned gap after every row.
func put(c *cudatest.GPU, dt tensor.DType, x []float32, rows, cols, gap int) launch.Mat {
	stride := cols + gap
	m := launch.Mat{DType: dt, Rows: rows, Cols: cols, Stride: stride}
	wide, half := make([]float32, rows*stride), make([]uint16, rows*stride)
	for i := range wide {
		wide[i], half[i] = math.Float32frombits(0xffffffff), 0xffff
		if i%stride < cols {
			v := x[i/stride*cols+i%stride]
			wide[i], half[i] = v, tensor.F32ToBF16(v)
		}
	}
	if dt == f32 {
		m.At = cudatest.Upload(c, wide)
	} else {
		m.At = cudatest.Upload(c, half)
	}
	return m
}

// gapsKept fails if a kernel has written between the rows of m.
func gapsKept(t *testing.T, c *cudatest.GPU, name string, m launch.Mat) {
	t.Helper()
	size := m.DType.Size()
	b := cudatest.Download[byte](c, m.At, ((m.Rows-1)*m.Stride+m.Cols)*size)
	for i, v := range b {
		if i/size%m.Stride >= m.Cols && v != cudatest.Poison {
			t.Fatalf("%s: wrote between rows, at byte %d", name, i)
		}
	}
}

// within allows ulps roundings to float32, and one to dt.
func within(dt tensor.DType, want []float32, ulps float64) kerneltest.Tolerance {
	if dt == bf16 {
		return kerneltest.Relative(want, ulps+0x1p15, 1e-30)
	}
	return kerneltest.Relative(want, ulps, 1e-30)
}

func check(t *testing.T, c *cudatest.GPU, name string, out launch.Mat, want []float32, ulps float64) {
	t.Helper()
	if err := kerneltest.Compare(c.Floats(out), want, out.Cols, within(out.DType, want, ulps)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	gapsKept(t, c, name, out)
}

// rounded returns x rounded to dt.
func rounded(dt tensor.DType, x []float32) []float32 {
	x = slices.Clone(x)
	for i := range x {
		if dt == bf16 {
			x[i] = tensor.BF16ToF32(tensor.F32ToBF16(x[i]))
		}
	}
	return x
}

// shapes: odd and aligned widths, rows with and without gaps, more than a block's threads.
var shapes = []struct{ rows, cols, gap int }{{1, 1, 0}, {3, 5, 2}, {2, 64, 0}, {4, 64, 8}, {3, 64, 3}, {2, 130, 0}, {1, 2056, 0}, {2, 300, 1}}

func TestGatherRows(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range shapes {
		for _, dt := range types {
			for _, ot := range types {
				x := values(rng, 7*s.cols)
				table := put(c, dt, x, 7, s.cols, s.gap)
				ids, want := []int32{6, -1, 0, 7, 3}[:max(1, s.rows)], make([]float32, s.rows*s.cols)
				for i, id := range ids[:s.rows] {
					if id >= 0 && id < 7 {
						copy(want[i*s.cols:(i+1)*s.cols], x[int(id)*s.cols:])
					}
				}
				out := c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
				in := c.I32(ids, s.rows, 1)
				c.Run(func(l *launch.List) { GatherRows(l, out, table, in) })
				check(t, c, "gather", out, want, 0)
			}
		}
	}
}

func TestElements(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(2, 1))
	for _, s := range shapes {
		for i := range 4 {
			a, b := types[i&1], types[i>>1]
			n := s.rows * s.cols
			x, y := values(rng, n), values(rng, n)
			want := make([]float32, n)
			// x += y and a bias
			xm, ym := put(c, a, x, s.rows, s.cols, s.gap), put(c, b, y, s.rows, s.cols, s.gap)
			for j := range want {
				want[j] = x[j] + y[j]
			}
			c.Run(func(l *launch.List) { Add(l, xm, ym) })
			check(t, c, "add", xm, want, 0)
			xm = put(c, a, x, s.rows, s.cols, s.gap)
			for j := range want {
				want[j] = x[j] + y[j%s.cols]
			}
			c.Run(func(l *launch.List) { AddBias(l, xm, ym.RowRange(0, 1)) })
			check(t, c, "bias", xm, want, 0)
		}
	}
}
