//go:build cuda

package gemv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/delta"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
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

// TestAddGated: norm, product and sum in one launch have the bits of one after the other.
func TestAddGated(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(22, 1))
	bits := []cudatest.Layout{{DType: tensor.BF16}, {Bits: 8, Group: 128}, {Bits: 4, Group: 128}}
	for i, gpu := range gpus {
		for j, p := range []device.DeltaNet{
			{KeyHeads: 2, ValueHeads: 10, KeyDim: 32, ValueDim: 128, Taps: 4},
			{KeyHeads: 4, ValueHeads: 16, KeyDim: 16, ValueDim: 44, Taps: 4, ByKeyHead: true},
			{KeyHeads: 1, ValueHeads: 1, KeyDim: 8, ValueDim: 64, Taps: 2},
		} {
			k, cols, n := bits[(i+j)%3], p.Values(), 100
			w := c.RandomWeights(rng, k, 1, n, cols)
			norm := c.BF16(cudatest.Normal(rng, p.ValueDim), 1, p.ValueDim)
			if j > 0 {
				norm = c.F32(cudatest.Normal(rng, p.ValueDim), 1, p.ValueDim)
			}
			sum, o := cudatest.Normal(rng, 4*n), cudatest.Normal(rng, 4*cols)
			x := c.BF16(cudatest.Normal(rng, 4*p.Width()), 4, p.Width())
			for _, rows := range []int{1, 4} {
				got, want, in := c.F32(sum, rows, n), c.F32(sum, rows, n), c.BF16(o, rows, cols)
				if !CanGated(in, x.RowRange(0, rows), norm, &w.Weight, p) {
					t.Fatalf("%+v is not taken", p)
				}
				c.Run(func(l *launch.List) {
					AddGated(l, gpu, got, in, x.RowRange(0, rows), norm, 1e-6, w.Weight, p)
					delta.GatedNorm(l, in, x.RowRange(0, rows), norm, 1e-6, p)
					MatMul(l, gpu, want, in, w.Weight, Options{Add: true})
				})
				if name := fmt.Sprintf("%+v, %+v, %d rows", k, p, rows); !slices.Equal(c.Floats(got), c.Floats(want)) {
					t.Errorf("%s: other bits", name)
				}
			}
		}
	}
}
