package rope

import (
	"fmt"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

func TestRotations(t *testing.T) {
	for _, l := range level.Available() {
		for _, interleaved := range []bool{true, false} {
			for dim := 0; dim <= 140; dim += 2 {
				if err := check(At(l), interleaved, dim); err != nil {
					t.Fatalf("%s, interleaved %v, dim %d: %v", l, interleaved, dim, err)
				}
			}
		}
	}
}

func check(fs *Funcs, interleaved bool, dim int) error {
	r := kerneltest.Rand(uint64(dim))
	heads, gap := 1+dim%4, dim%5
	cols := heads * (dim + gap)
	x := kerneltest.Normal(r, cols, 1)
	table := kerneltest.Normal(r, dim, 1)
	got := kerneltest.GuardOf(x, 4*(dim%16))
	turn := fs.Halves
	if interleaved {
		turn = fs.Pairs
	}
	turn(got.First(), kerneltest.GuardOf(table, 4*((dim+3)%16)).First(), heads, dim+gap, dim)
	want := append([]float32(nil), x...)
	ref.Rope(want, cols, []int32{0}, table, device.Rope{Heads: heads, HeadDim: dim + gap, Dim: dim, Interleaved: interleaved})
	// Two products of magnitude up to |pair| |angle| and two roundings.
	limit := kerneltest.Eps32 * 2 * kerneltest.MaxAbs(x) * kerneltest.MaxAbs(table)
	if err := kerneltest.Compare(got.Data, want, max(1, cols), kerneltest.Relative(want, 1, limit)); err != nil {
		return err
	}
	for i := range got.Data {
		if i%(dim+gap) >= dim && got.Data[i] != x[i] {
			return fmt.Errorf("element %d is outside of the rotated part and changed", i)
		}
	}
	return got.Check()
}
