//go:build cuda

package gemv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// TestNormMatMul: the result has the bits of a norm followed by a product. Blocks have fewer and
// more threads than those that norm a row separately, and rows have several chunks per thread.
func TestNormMatMul(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 8))
	const eps, most = 1e-6, 3
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
					elem.RMSNorm(l, in, x, norm, eps)
					MatMul(l, gpu, want, in, w.Weight, Options{})
				})
				all := c.Floats(want)
				for m := 1; m <= most; m++ {
					out := c.Strided(tensor.BF16, m, n, n+3)
					c.Run(func(l *launch.List) { NormMatMul(l, gpu, out, x.RowRange(0, m), norm, eps, w.Weight) })
					if got := c.Floats(out); !slices.Equal(got, all[:m*n]) {
						t.Fatalf("%s: %d rows of F32 %v differ from a norm and a product", fmt.Sprintf("%+v %v", k, shape), m, wide)
					}
				}
			}
		}
	}
}
