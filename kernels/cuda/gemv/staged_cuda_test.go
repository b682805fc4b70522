//go:build cuda

package gemv

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// gpus divide rows into eight parts, and into fewer.
var gpus = []launch.GPU{h100, {SMs: 12, SharedMax: 232448}, {SMs: 1, SharedMax: 64 << 10}}

// TestPair: two products in one launch have the bits of each alone.
func TestPair(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(21, 1))
	bits, types := []cudatest.Layout{{Bits: 8, Group: 128}, {Bits: 4, Group: 128}, {Bits: 8}}, []tensor.DType{tensor.BF16, tensor.F32}
	for i, gpu := range gpus {
		for j, shape := range [][3]int{{80, 64, 1280}, {274, 17, 704}, {33, 5, 64}} {
			k, dt, cols := bits[(i+j)%3], types[(i+j)%2], shape[2]
			w, s := c.RandomWeights(rng, k, 1, shape[0], cols), c.RandomWeights(rng, cudatest.Layout{DType: tensor.BF16}, 1, shape[1], cols)
			x := c.BF16(cudatest.Normal(rng, 4*cols), 4, cols)
			for _, rows := range []int{1, 4} {
				in, n := x.RowRange(0, rows), shape[0]+shape[1]
				got, want := c.Strided(dt, rows, n, n+3), c.Strided(dt, rows, n, n+3)
				c.Run(func(l *launch.List) {
					Pair(l, gpu, got, in, w.Weight, s.Weight)
					if !Paired(l) {
						t.Error("the launch is not known")
					}
					MatMul(l, gpu, want.ColRange(0, shape[0]), in, w.Weight, Options{})
					MatMul(l, gpu, want.ColRange(shape[0], n), in, s.Weight, Options{})
				})
				if !slices.Equal(c.Floats(got), c.Floats(want)) {
					t.Errorf("%v, %+v, %d rows, %s: other bits", shape, k, rows, dt)
				}
			}
		}
	}
}
