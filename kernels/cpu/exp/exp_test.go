package exp

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
)

func forLengths(t *testing.T, from int, f func(fs *Funcs, n int) error) {
	for _, l := range level.Available() {
		for n := from; n < 100; n++ {
			if err := f(At(l), n); err != nil {
				t.Fatalf("%s, n %d: %v", l, n, err)
			}
		}
	}
}

func TestMax(t *testing.T) {
	forLengths(t, 1, func(fs *Funcs, n int) error {
		for at := range n {
			v := kerneltest.Normal(kerneltest.Rand(uint64(n)), n, 1)
			for i := range v {
				v[i] -= 100
			}
			v[at] = -90
			if got := fs.Max(kerneltest.GuardOf(v, 4*(n%16)).First(), n); got != -90 {
				return fmt.Errorf("%g, want the value at %d", got, at)
			}
		}
		return nil
	})
}

func TestExpSum(t *testing.T) {
	forLengths(t, 0, func(fs *Funcs, n int) error {
		src := kerneltest.Normal(kerneltest.Rand(uint64(n)), n, 5)
		const scale, shift = 0.5, 3.25 // exact in the fused product
		want, sum := make([]float32, n), 0.0
		for i, v := range src {
			e := math.Exp(float64(v*scale - shift)) // the argument is rounded once
			want[i] = float32(e)
			sum += e
		}
		dst := kerneltest.Guard[float32](n, 4*((n+1)%16))
		got := fs.ExpSum(dst.First(), kerneltest.GuardOf(src, 4*(n%16)).First(), n, scale, shift)
		if err := kerneltest.Compare(dst.Data, want, max(1, n), within(want)); err != nil {
			return err
		}
		if limit := sum * kerneltest.Eps32 * (4 + math.Sqrt(float64(n))); math.Abs(float64(got)-sum) > limit {
			return fmt.Errorf("sum %g, want %g within %g", got, sum, limit)
		}
		return dst.Check()
	})
}

// within returns the documented accuracy: 2 units in the last place, counted at the result (so a
// subnormal result may be off by two steps).
func within(want []float32) kerneltest.Tolerance {
	return kerneltest.Relative(want, 2, 2*math.SmallestNonzeroFloat32)
}

// The whole range, in steps too fine for a fault of one exponent to slip by.
func TestExpAccuracy(t *testing.T) {
	var src, want []float32
	for x := -120.0; x < 95; x += 0.00517 {
		src = append(src, float32(x))
		want = append(want, float32(math.Exp(float64(float32(x)))))
	}
	for _, l := range level.Available() {
		dst := make([]float32, len(src))
		At(l).ExpSum(&dst[0], &src[0], len(src), 1, 0)
		if err := kerneltest.Compare(dst, want, len(want), within(want)); err != nil {
			t.Errorf("%s: %v", l, err)
		}
	}
}

func TestExpSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	src := []float32{0, -inf, inf, nan, -1e30, 1e30, 88.72, 88.73, -103, -104, -200}
	want := []float32{1, 0, inf, nan, 0, inf, float32(math.Exp(float64(float32(88.72)))), inf, float32(math.Exp(-103)), 0, 0}
	for _, l := range level.Available() {
		for shift := range 16 { // through all lanes, main loop and tail
			in := append(make([]float32, shift), src...)
			dst := make([]float32, len(in))
			sum := At(l).ExpSum(&dst[0], &in[0], len(in), 1, 0)
			if err := kerneltest.Compare(dst[shift:], want, len(want), within(want)); err != nil {
				t.Errorf("%s: %v", l, err)
			}
			if !math.IsNaN(float64(sum)) {
				t.Errorf("%s: the sum hides a NaN: %g", l, sum)
			}
		}
	}
}

func TestSigmoidAndSilu(t *testing.T) {
	forLengths(t, 0, func(fs *Funcs, n int) error {
		r := kerneltest.Rand(uint64(n))
		src, up := kerneltest.Normal(r, n, 8), kerneltest.Normal(r, n, 2)
		for i := 0; i < n; i += 5 {
			src[i] *= 20
		}
		want, silu := make([]float32, n), make([]float32, n)
		for i, v := range src {
			s := 1 / (1 + math.Exp(-float64(v)))
			want[i], silu[i] = float32(s), float32(float64(v)*s*float64(up[i]))
		}
		dst, in := kerneltest.Guard[float32](n, 4*((n+1)%16)), kerneltest.GuardOf(src, 4*(n%16))
		fs.Sigmoid(dst.First(), in.First(), n)
		if err := kerneltest.Compare(dst.Data, want, max(1, n), kerneltest.Relative(want, 3, 1e-38)); err != nil {
			return err
		}
		fs.SiluMul(dst.First(), in.First(), kerneltest.GuardOf(up, 4*((n+9)%16)).First(), n)
		if err := kerneltest.Compare(dst.Data, silu, max(1, n), kerneltest.Relative(silu, 4, 1e-36)); err != nil {
			return fmt.Errorf("silu: %w", err)
		}
		return dst.Check()
	})
}

func TestSiluSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	src := []float32{0, inf, nan, -1e30, 1e30, -120, 120}
	for _, l := range level.Available() {
		dst, ones := make([]float32, len(src)), []float32{1, 1, 1, 1, 1, 1, 1}
		At(l).SiluMul(&dst[0], &src[0], &ones[0], len(src))
		want := []float32{0, inf, nan, 0, 1e30, 0, 120}
		if err := kerneltest.Compare(dst, want, len(want), kerneltest.Relative(want, 2, 1e-36)); err != nil {
			t.Errorf("%s: %v", l, err)
		}
	}
}

func TestSwiGLU(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, act := range [][3]float32{{1.702, 7, 1}, {1, 0.5, 0}, {1, inf, 0}, {-2, 3, -0.25}} {
		forLengths(t, 0, func(fs *Funcs, n int) error {
			r := kerneltest.Rand(uint64(n))
			gate, up := kerneltest.Normal(r, n, 8), kerneltest.Normal(r, n, 8)
			for i := 0; i < n; i += 7 {
				gate[i], up[(i+3)%n] = []float32{-200, inf, nan, 200}[i/7%4], []float32{3e38, -3e38, nan, 200}[i/7%4]
			}
			want := make([]float32, n)
			for i := range want {
				g, u := float64(min(gate[i], act[1])), float64(max(-act[1], min(up[i], act[1]))+act[2])
				want[i] = float32(g / (1 + math.Exp(-float64(act[0]*float32(g)))) * u)
			}
			dst := kerneltest.Guard[float32](n, 4*((n+1)%16))
			fs.SwiGLU(dst.First(), kerneltest.GuardOf(gate, 4*(n%16)).First(), kerneltest.GuardOf(up, 4*((n+9)%16)).First(), n, act[0], act[1], act[2])
			if err := kerneltest.Compare(dst.Data, want, max(1, n), kerneltest.Relative(want, 4, 1e-36)); err != nil {
				return fmt.Errorf("%v: %w", act, err)
			}
			return dst.Check()
		})
	}
}

// TestCubic: GELU by tanh, and every other argument, with values beyond the range of exp.
func TestCubic(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, act := range [][4]float32{{1.5957691, 0.044715, inf, 0}, {2, 0.1, 2, 1}, {1, 0, 0.5, -0.25}, {-2, 0.5, 3, 0}} {
		forLengths(t, 0, func(fs *Funcs, n int) error {
			r := kerneltest.Rand(uint64(n))
			gate, up := kerneltest.Normal(r, n, 3), kerneltest.Normal(r, n, 8)
			for i := 0; i < n; i += 7 {
				gate[i], up[(i+3)%n] = []float32{-20, inf, nan, 200}[i/7%4], []float32{3e38, -3e38, nan, 200}[i/7%4]
			}
			want, sizes := make([]float32, n), make([]float64, n)
			for i := range want {
				g, u := float64(min(gate[i], act[2])), float64(max(-act[2], min(up[i], act[2]))+act[3])
				y := float64(act[0]) * (g + float64(act[1])*g*g*g)
				if want[i] = float32(g / (1 + math.Exp(-y)) * u); act[1] == 0 && math.IsInf(g, 0) {
					want[i] = nan // 0 * inf
				}
				sizes[i] = (8 + 4*math.Abs(y)) // the argument of exp has a few roundings, each relative to its size
			}
			dst := kerneltest.Guard[float32](n, 4*((n+1)%16))
			fs.Cubic(dst.First(), kerneltest.GuardOf(gate, 4*(n%16)).First(), kerneltest.GuardOf(up, 4*((n+9)%16)).First(), n, act[0], act[1], act[2], act[3])
			for i, w := range want {
				if got := dst.Data[i]; got != w && !(w != w && got != got) && !(math.Abs(float64(got-w)) <= kerneltest.Eps32*sizes[i]*math.Abs(float64(w))+1e-36) {
					return fmt.Errorf("%v: of %g and %g came %g, want %g", act, gate[i], up[i], got, w)
				}
			}
			return dst.Check()
		})
	}
}

func TestSoftcap(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, limit := range []float32{30, 1.5, 1e-3, 1e6} {
		forLengths(t, 0, func(fs *Funcs, n int) error {
			x := kerneltest.Normal(kerneltest.Rand(uint64(n)), n, 2*float64(limit))
			for i := 0; i < n; i += 7 {
				x[i] = []float32{-inf, inf, nan, 0, 3e38}[i/7%5]
			}
			dst := kerneltest.GuardOf(x, 4*(n%16))
			fs.Softcap(dst.First(), n, limit)
			for i, v := range x {
				w := float64(limit) * math.Tanh(float64(v)/float64(limit))
				if got := float64(dst.Data[i]); !(math.IsNaN(w) && math.IsNaN(got)) && !(math.Abs(got-w) <= 4*kerneltest.Eps32*float64(limit)) {
					return fmt.Errorf("limit %g: of %g came %g, want %g", limit, v, got, w)
				}
			}
			return dst.Check()
		})
	}
}

func BenchmarkSiluMul(b *testing.B) {
	for _, l := range level.Available() {
		for _, n := range []int{64, 1408} {
			b.Run(fmt.Sprintf("%s/n%d", l, n), func(b *testing.B) {
				x, y, f := kerneltest.Normal(kerneltest.Rand(1), n, 1), make([]float32, n), At(l)
				ns := kerneltest.Quartile(b, 16, func() {
					for range 16 {
						f.SiluMul(&y[0], &x[0], &x[0], n)
					}
				})
				kerneltest.Report(b, ns, 12*n, 0)
			})
		}
	}
}

// TestVectorsAgree: activations have the same bits on all levels with vectors, and so on a GPU with
// --same-tokens, which has them too.
func TestVectorsAgree(t *testing.T) {
	const n = 5000
	r := kerneltest.Rand(3)
	gate, up := kerneltest.Normal(r, n, 20), kerneltest.Normal(r, n, 2)
	for i := range 1000 {
		gate[i] = float32(i-500) / 4
	}
	copy(gate, []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-40, -1e-40, 3e38, -3e38})
	var first level.Level
	var want [3][]float32
	for _, l := range level.Available() {
		if l == level.Pure {
			continue
		}
		var got [3][]float32
		for i := range got {
			got[i] = make([]float32, n)
		}
		fs := At(l)
		fs.SiluMul(&got[0][0], &gate[0], &up[0], n)
		fs.SwiGLU(&got[1][0], &gate[0], &up[0], n, 1.702, 7, 1)
		fs.Cubic(&got[2][0], &gate[0], &up[0], n, 1.5957691, 0.044715, float32(math.Inf(1)), 0)
		if want[0] == nil {
			first, want = l, got
		}
		for i := range got {
			if err := kerneltest.SameBits(got[i], want[i]); err != nil {
				t.Errorf("activation %d on %s and %s: %v", i, l, first, err)
			}
		}
	}
}
