package norm

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
)

func TestKernels(t *testing.T) {
	for _, l := range level.Available() {
		for n := range 200 {
			if err := check(At(l), n); err != nil {
				t.Fatalf("%s, n %d: %v", l, n, err)
			}
		}
	}
}

func check(fs *Funcs, n int) error {
	r := kerneltest.Rand(uint64(n))
	values, added := kerneltest.Normal(r, n, 2), kerneltest.Normal(r, n, 2)
	stored, widened := kerneltest.BF16(kerneltest.Normal(r, n, 1))
	x, delta := kerneltest.GuardOf(values, 4*(n%16)), kerneltest.GuardOf(added, 4*((n+1)%16))
	if err := sum(fs.SumSquares(x.First(), n), values); err != nil {
		return err
	}
	got := fs.AddSumSquares(x.First(), delta.First(), n)
	for i, v := range added {
		values[i] += v
	}
	if err := kerneltest.SameBits(x.Data, values); err != nil {
		return err
	}
	if err := sum(got, values); err != nil {
		return err
	}
	want := make([]float32, n)
	for i := range want {
		v := values[i] * 0.7
		want[i] = v * widened[i]
	}
	out := kerneltest.Guard[float32](n, 4*((n+2)%16))
	fs.MulF32(out.First(), x.First(), kerneltest.GuardOf(widened, 4*((n+3)%16)).First(), n, 0.7)
	if err := kerneltest.SameBits(out.Data, want); err != nil {
		return err
	}
	fs.MulBF16(out.First(), x.First(), kerneltest.GuardOf(stored, 2*((n+3)%16)).First(), n, 0.7)
	if err := kerneltest.SameBits(out.Data, want); err != nil {
		return fmt.Errorf("bf16: %w", err)
	}
	fs.MulBF16(x.First(), x.First(), kerneltest.GuardOf(stored, 0).First(), n, 0.7) // in place
	if err := kerneltest.SameBits(x.Data, want); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	if err := x.Check(); err != nil {
		return err
	}
	return out.Check()
}

// sum compares a sum of squares, all terms of which are positive.
func sum(got float32, values []float32) error {
	var want float64
	for _, v := range values {
		want += float64(v) * float64(v)
	}
	limit := want * kerneltest.Eps32 * (4 + math.Sqrt(float64(len(values))))
	if math.Abs(float64(got)-want) > limit {
		return fmt.Errorf("sum of squares %g, want %g within %g", got, want, limit)
	}
	return nil
}
