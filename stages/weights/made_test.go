package weights

import (
	"slices"
	"testing"

	"krater/kernels/tensor"
)

func TestOf(t *testing.T) {
	freed := 0
	s := Of([]Named{
		{"b", Tensor{tensor.BF16, []int{2, 2}, make([]byte, 8)}},
		{"a", Tensor{tensor.BF16, []int{3}, nil}},
	}, func() error { freed++; return nil })
	if !slices.Equal(s.Names(), []string{"b", "a"}) || s.Bytes() != 8 {
		t.Errorf("%v, %d bytes", s.Names(), s.Bytes())
	}
	if x, ok := s.Tensor("a"); !ok || !slices.Equal(x.Shape, []int{3}) {
		t.Errorf("%v, %v", x, ok)
	}
	s.Release("a")
	if err := s.Close(); err != nil || freed != 1 {
		t.Errorf("close: %v, freed %d times", err, freed)
	}
}
