//go:build cuda

package elem

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func TestMaps(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(23, 1))
	for _, s := range shapes {
		for i := range 8 {
			ot, xt, ut, n := types[i&1], types[i>>1&1], types[i>>2], s.rows*s.cols
			x, u := cudatest.Normal(rng, n), cudatest.Normal(rng, n)
			x[rng.IntN(n)] = -40 // its GELU is 0
			in, up, out := put(c, xt, x, s.rows, s.cols, s.gap), put(c, ut, u, s.rows, s.cols, s.gap), c.Strided(ot, s.rows, s.cols, s.cols+s.gap)
			c.Run(func(l *launch.List) { Scale(l, out, in, 0.3) })
			want := slices.Clone(x)
			ref.Scale(want, 0.3)
			check(t, c, "scale", out, want, 1)

			for _, act := range []device.Activation{device.GELUTanh, {}, {Alpha: 1.702, Limit: 0.5, Shift: 1}} {
				want = slices.Clone(x)
				ref.Activate(want, u, act)
				c.Run(func(l *launch.List) { Activate(l, out, in, up, extra(act)) })
				near(t, c, fmt.Sprintf("%+v", act), out, want)
			}
			c.Run(func(l *launch.List) { Softcap(l, in, 1.5) })
			want = slices.Clone(x)
			ref.Softcap(want, 1.5)
			near(t, c, "soft cap", in, want)
		}
	}
}

func extra(a device.Activation) *launch.Extra {
	return &launch.Extra{Alpha: a.Alpha, Limit: a.Limit, Shift: a.Shift, Cubic: a.Cubic}
}

// near allows what expf and a difference of numbers near 1 lose, and one rounding to out's type.
func near(t *testing.T, c *cudatest.GPU, name string, out launch.Mat, want []float32) {
	t.Helper()
	tol := within(out.DType, want, 16)
	if err := kerneltest.Compare(c.Floats(out), want, out.Cols, func(i int) float64 { return tol(i) + 1e-6 }); err != nil {
		t.Errorf("%s of %v: %v", name, out, err)
	}
	gapsKept(t, c, name, out)
}

func TestActivateJoined(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(24, 1))
	for _, s := range []struct{ rows, cols, gap int }{{1, 8, 0}, {3, 24, 8}, {2, 704, 0}, {2, 16, 3}} {
		for _, dt := range types {
			both := cudatest.Normal(rng, 2*s.rows*s.cols)
			want := make([]float32, s.rows*s.cols)
			for i := range want {
				at := i/s.cols*2*s.cols + i%s.cols/8*16 + i%8
				want[i] = float32(device.GELUTanh.Of(float64(both[at]), float64(both[at+8])))
			}
			in, out := put(c, dt, both, s.rows, 2*s.cols, s.gap), c.Strided(dt, s.rows, s.cols, s.cols+s.gap)
			c.Run(func(l *launch.List) { ActivateJoined(l, out, in, extra(device.GELUTanh)) })
			near(t, c, "joined", out, want)
		}
	}
}

func TestWeighChosen(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(25, 1))
	for _, s := range []struct{ rows, k, experts int }{{1, 1, 3}, {5, 8, 128}, {9, 32, 40}} {
		type choice struct {
			id     int32
			weight float32
		}
		var ids, wantIDs []int32
		var weights, want []float32
		factors := cudatest.Normal(rng, s.experts)
		for i := range factors {
			factors[i] = float32(math.Round(float64(factors[i] * 4))) // some are equal
		}
		for row := range s.rows {
			var list []choice
			for k, e := range rng.Perm(s.experts)[:s.k] {
				x := choice{int32(e), float32(1 + k%2)}
				if row == 1 {
					x = choice{-1, 0} // a row that pads the batch
				}
				ids, weights = append(ids, x.id), append(weights, x.weight)
				if x.id >= 0 {
					x.weight *= factors[e]
				}
				list = append(list, x)
			}
			slices.SortFunc(list, func(a, b choice) int {
				return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id))
			})
			for _, x := range list {
				wantIDs, want = append(wantIDs, x.id), append(want, x.weight)
			}
		}
		m, w, f := c.I32(ids, s.rows, s.k), c.F32(weights, s.rows, s.k), c.F32(factors, 1, s.experts)
		c.Run(func(l *launch.List) { WeighChosen(l, m, w, f) })
		if got := cudatest.Download[int32](c, m.At, len(ids)); !slices.Equal(got, wantIDs) || !slices.Equal(c.Floats(w), want) {
			t.Errorf("%+v: %v %v, want %v %v", s, got, c.Floats(w), wantIDs, want)
		}
	}
	if err := recovered(func() {
		var l launch.List
		WeighChosen(&l, at(16, tensor.I32, 1, 33), at(16, f32, 1, 33), at(16, f32, 1, 40))
	}); err == nil {
		t.Error("33 experts of a row are taken")
	}
}

func recovered(f func()) (err any) {
	defer func() { err = recover() }()
	f()
	return nil
}
