//go:build cuda

package gemv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// normEps is the epsilon of the norms in these tests, which compare two ways to compute the same norm.
const normEps = 1e-6

// TestNormCombined: a mixture added to the residual, and the norm after it, have the same bits in one launch as in two.
// Rows have several chunks per thread, ranks without an expert hold anything.
func TestNormCombined(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(9, 8))
	int4 := &cudatest.Layout{Bits: 4, Group: 128}
	for i, hidden := range []int{192, 1024, 4224, 512} {
		v := newMoECase(c, rng, int4, []*cudatest.Layout{nil, int4}[i%2], device.Activation{}, false, i == 3, hidden, 128, 9)
		norm := c.BF16(cudatest.Normal(rng, hidden), 1, hidden)
		if i == 1 {
			norm = c.F32(cudatest.Normal(rng, hidden), 1, hidden)
		}
		for _, rows := range []int{4, 9} {
			m, memory := v.mixture(c, h100, 0, rows)
			before := cudatest.Normal(rng, rows*hidden)
			run := func(fused bool) (x, out []float32) {
				sum, in := c.F32(before, rows, hidden), c.Strided(tensor.BF16, rows, hidden, hidden+8)
				c.Run(func(l *launch.List) {
					MoE(l, h100, sum, memory, m, Options{Add: true})
					n := len(l.Ops)
					other, wide := sum, in
					other.At, wide.DType = in.At, tensor.F32
					if NormCombined(l, in, other, norm, normEps) || NormCombined(l, wide, sum, norm, normEps) || NormCombined(l, in.RowRange(1, rows), sum.RowRange(1, rows), norm, normEps) {
						t.Fatal("the norm of other rows is fused")
					}
					if !fused {
						elem.RMSNorm(l, in, sum, norm, normEps)
					} else if !NormCombined(l, in, sum, norm, normEps) || len(l.Ops) != n || NormCombined(l, in, sum, norm, normEps) {
						t.Fatalf("%d launches after %d", len(l.Ops), n)
					}
				})
				return c.Floats(sum), c.Floats(in)
			}
			x, out := run(true)
			wantX, want := run(false)
			if !slices.Equal(x, wantX) || !slices.Equal(out, want) || slices.ContainsFunc(out, func(v float32) bool { return math.IsNaN(float64(v)) }) {
				t.Errorf("%d columns, %d rows: other bits in one launch", hidden, rows)
			}
		}
	}
}

// TestNormMatMul: the result has the bits of a norm followed by a product. Blocks have fewer and
// more threads than those that norm a row separately, and rows have several chunks per thread.
func TestNormMatMul(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 8))
	const most = 3
	for i, k := range layouts {
		for j, shape := range [][2]int{{17, 64}, {80, 192}, {48, 704}, {33, 2048}, {16, 4224}} {
			n, cols := shape[0], shape[1]
			if j > 2 && i%3 > 0 {
				continue
			}
			gpu := []launch.GPU{h100, {SMs: 1, SharedMax: 64 << 10}}[(i+j)%2]
			w := c.RandomWeights(rng, k, 1, n, cols)
			if (i+j)%2 == 0 {
				w.Bias = c.F32(cudatest.Normal(rng, n), 1, n).At
			}
			norm := c.BF16(cudatest.Normal(rng, cols), 1, cols)
			if j%2 == 1 {
				norm = c.F32(cudatest.Normal(rng, cols), 1, cols)
			}
			for _, wide := range []bool{true, false} {
				x := c.BF16(cudatest.Normal(rng, most*cols), most, cols)
				if wide {
					x = c.F32(cudatest.Normal(rng, most*cols), most, cols)
				}
				in, want := c.Mat(tensor.BF16, most, cols), c.Mat(tensor.BF16, most, n)
				c.Run(func(l *launch.List) {
					elem.RMSNorm(l, in, x, norm, normEps)
					MatMul(l, gpu, want, in, w.Weight, Options{})
				})
				all := c.Floats(want)
				for m := 1; m <= most; m++ {
					out := c.Strided(tensor.BF16, m, n, n+3)
					c.Run(func(l *launch.List) { NormMatMul(l, gpu, out, x.RowRange(0, m), norm, normEps, w.Weight) })
					if got := c.Floats(out); !slices.Equal(got, all[:m*n]) {
						t.Fatalf("%s: %d rows of F32 %v differ from a norm and a product", fmt.Sprintf("%+v %v", k, shape), m, wide)
					}
				}
			}
		}
	}
}
