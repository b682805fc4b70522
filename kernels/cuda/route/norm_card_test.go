//go:build cuda

package route

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// TestNormRoute: rows, logits and choice have the bits of a norm followed by Route, and the turn
// is zero again.
func TestNormRoute(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(9, 3))
	const eps = 1e-6
	turn := c.I32(make([]int32, TurnBytes/4), 1, TurnBytes/4).At
	for i, s := range []struct{ rows, cols int }{{1, 64}, {1, 2048}, {2, 264}, {2, 1032}, {1, 4160}} {
		for _, p := range []device.Router{routers[0], routers[1], routers[2]} {
			gate := upload(c, []tensor.DType{f32, bf16}[i%2], cudatest.Normal(rng, p.Experts*s.cols), p.Experts, s.cols)
			in := launch.Weight{F: gate}
			if i%2 == 1 {
				in.Bias = c.F32(cudatest.Normal(rng, p.Experts), 1, p.Experts).At
			}
			of := c.F32(cudatest.Normal(rng, s.rows*s.cols), s.rows, s.cols)
			norm := c.BF16(cudatest.Normal(rng, s.cols), 1, s.cols)
			type result struct{ x, logits, ids, weights launch.Mat }
			made := func() result {
				return result{c.Strided(bf16, s.rows, s.cols, s.cols+8), c.Mat(f32, s.rows, p.Experts), c.Mat(i32, s.rows, p.TopK), c.Mat(f32, s.rows, p.TopK)}
			}
			a, b, scratch := made(), made(), c.Alloc(max(16, Scratch(s.rows, p.Experts, s.cols)))
			c.Run(func(l *launch.List) {
				elem.RMSNorm(l, a.x, of, norm, eps)
				Route(l, a.ids, a.weights, a.logits, a.x, in, launch.Mat{}, p, 0, turn, scratch)
				NormRoute(l, b.ids, b.weights, b.logits, b.x, of, norm, eps, in, launch.Mat{}, p, turn, scratch)
			})
			for what, m := range map[string][2]launch.Mat{"rows": {a.x, b.x}, "logits": {a.logits, b.logits}, "weights": {a.weights, b.weights}} {
				if err := kerneltest.SameBits(c.Floats(m[1]), c.Floats(m[0])); err != nil {
					t.Fatalf("%+v, %d experts: %s: %v", s, p.Experts, what, err)
				}
			}
			if got, want := ints(c, b.ids), ints(c, a.ids); !slices.Equal(got, want) {
				t.Fatalf("%+v: chose %v, want %v", s, got, want)
			}
			if n := cudatest.Download[int32](c, turn, 1)[0]; n != 0 {
				t.Fatalf("the turn is %d", n)
			}
		}
	}
}
