package qrows

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu/exp"
	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

// result is a quantised row in guarded memory.
type result struct {
	q     *kerneltest.Guarded[int8]
	scale *kerneltest.Guarded[float32]
	bias  *kerneltest.Guarded[int32]
}

func newResult(groups, steps, misalign int) result {
	return result{
		kerneltest.Guard[int8](groups*steps*Block, misalign), kerneltest.Guard[float32](groups, 4*misalign%64),
		kerneltest.Guard[int32](groups, 4*(misalign+3)%64),
	}
}

func (r result) check(want ref.QRows) error {
	for _, err := range []error{r.q.Check(), r.scale.Check(), r.bias.Check()} {
		if err != nil {
			return err
		}
	}
	for i, v := range r.q.Data {
		if v != want.Q[i] {
			return fmt.Errorf("value %d is %d, want %d", i, v, want.Q[i])
		}
	}
	if !slices.Equal(r.bias.Data, want.Bias) {
		return fmt.Errorf("bias %v, want %v", r.bias.Data, want.Bias)
	}
	for i, v := range r.scale.Data {
		if math.Float32bits(v) != math.Float32bits(want.Scale[i]) && (v == v || want.Scale[i] == want.Scale[i]) {
			return fmt.Errorf("scale %d is %g, want %g", i, v, want.Scale[i])
		}
	}
	return nil
}

// rows are inputs of every kind: normal, ties, extremes, nothing, not numbers.
func rows(n int) map[string][]float32 {
	r := kerneltest.Rand(uint64(n))
	ties, extreme, mixed := make([]float32, n), make([]float32, n), kerneltest.Normal(r, n, 1)
	for i := range n {
		ties[i] = float32(r.IntN(255)-127) + 0.5*float32(r.IntN(2))
		ties[i] = min(max(ties[i], -127), 127)
		extreme[i] = math.MaxFloat32 * float32(r.IntN(3)-1)
	}
	for i := 0; i < n; i += Block {
		ties[i] = 127
		mixed[i+r.IntN(Block)] = []float32{0, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e30, -math.Float32frombits(0x7f800001)}[r.IntN(6)]
	}
	tiny := kerneltest.Normal(r, n, 0x1p-101)
	denormal := kerneltest.Normal(r, n, 1e-40)
	negative := make([]float32, n)
	for i := range negative {
		negative[i] = float32(math.Copysign(0, -1))
	}
	return map[string][]float32{
		"normal": kerneltest.Normal(r, n, 3), "large": kerneltest.Normal(r, n, 1e37), "ties": ties, "extreme": extreme, "mixed": mixed,
		"tiny": tiny, "denormal": denormal, "zero": make([]float32, n), "negative zero": negative,
	}
}

func TestQuantize(t *testing.T) {
	for _, l := range level.Available() {
		for _, steps := range []int{1, 2, 3, 4, 11} {
			for _, groups := range []int{1, 2, 5} {
				n := groups * steps * Block
				for name, x := range rows(n) {
					in, got := kerneltest.GuardOf(x, 4*(steps%16)), newResult(groups, steps, 5*groups)
					At(l).Quantize(in.First(), got.q.First(), got.scale.First(), got.bias.First(), groups, steps)
					if err := got.check(ref.QuantizeRows(x, n, steps*Block)); err != nil {
						t.Fatalf("%s, %d groups of %d steps, %s: %v", l, groups, steps, name, err)
					}
				}
			}
		}
	}
}

// The fused kernel is the two kernels one after the other.
func TestSiluQuantize(t *testing.T) {
	for _, l := range level.Available() {
		for _, steps := range []int{1, 2, 4, 7} {
			for _, groups := range []int{1, 3} {
				n := groups * steps * Block
				for name, x := range rows(n) {
					gate, up := kerneltest.GuardOf(x, 8), kerneltest.GuardOf(kerneltest.Normal(kerneltest.Rand(9), n, 2), 20)
					mid := make([]float32, n)
					exp.At(l).SiluMul(&mid[0], &x[0], up.First(), n)
					got := newResult(groups, steps, 3)
					At(l).SiluQuantize(gate.First(), up.First(), got.q.First(), got.scale.First(), got.bias.First(), groups, steps)
					if err := got.check(ref.QuantizeRows(mid, n, steps*Block)); err != nil {
						t.Fatalf("%s, %d groups of %d steps, %s: %v", l, groups, steps, name, err)
					}
					if err := gate.Check(); err != nil {
						t.Fatal(err)
					}
					for i := range mid {
						if math.Float32bits(mid[i]) != math.Float32bits(gate.Data[i]) && mid[i] == mid[i] {
							t.Fatalf("%s, %s: value %d is %g, want %g", l, name, i, gate.Data[i], mid[i])
						}
					}
				}
			}
		}
	}
}

func BenchmarkQuantize(b *testing.B) {
	const n, calls = 2048, 16
	for _, l := range level.Available() {
		for _, steps := range []int{1, 4, n / Block} {
			groups := n / Block / steps
			x, up := kerneltest.Normal(kerneltest.Rand(1), n, 1), kerneltest.Normal(kerneltest.Rand(2), n, 1)
			r := newResult(groups, steps, 0)
			run := func(name string, f func()) {
				b.Run(fmt.Sprintf("%s/%s/g%d", l, name, steps*Block), func(b *testing.B) {
					ns := kerneltest.Quartile(b, calls, func() {
						for range calls {
							f()
						}
					})
					kerneltest.Report(b, ns, 4*n, 0)
				})
			}
			run("plain", func() { At(l).Quantize(&x[0], r.q.First(), r.scale.First(), r.bias.First(), groups, steps) })
			run("silu", func() {
				At(l).SiluQuantize(&x[0], &up[0], r.q.First(), r.scale.First(), r.bias.First(), groups, steps)
			})
		}
	}
}
