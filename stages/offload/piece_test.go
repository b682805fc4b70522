package offload

import (
	"slices"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
	"krater/stages/load"
)

// TestJoin: pieces that keep their distance are one copy.
func TestJoin(t *testing.T) {
	a, b := &struct{ hosttest.Buffer }{}, &struct{ hosttest.Buffer }{}
	for _, c := range []struct{ in, want []piece }{
		{nil, nil},
		{[]piece{{a, 10, 64, 0}}, []piece{{a, 10, 64, 0}}},
		{[]piece{{a, 10, 64, 0}, {a, 74, 30, 64}, {a, 138, 5, 128}}, []piece{{a, 10, 133, 0}}},
		{[]piece{{a, 10, 64, 0}, {b, 74, 30, 64}}, []piece{{a, 10, 64, 0}, {b, 74, 30, 64}}},
		{[]piece{{a, 138, 64, 0}, {a, 202, 64, 64}, {a, 10, 64, 128}}, []piece{{a, 138, 128, 0}, {a, 10, 64, 128}}},
	} {
		if got := join(slices.Clone(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

// TestSlotBytes: the size that a plan counts with is that of the slots.
func TestSlotBytes(t *testing.T) {
	r := newRig(t)
	defer r.Close()
	got, err := SlotBytes(r.parts.Config, load.Precision{}, nil)
	if err != nil || got != int64(r.Experts.SlotBytes()) || got == 0 {
		t.Errorf("%d bytes, %v; slots have %d", got, err, r.Experts.SlotBytes())
	}
	f, h := int64(r.parts.Config.MoE.FF), int64(r.parts.Config.Hidden)
	for _, bits := range []int{4, 8} {
		want := 3*f*h*int64(bits)/8 + 3*f*h/32*2
		if got, err := SlotBytes(r.parts.Config, load.Precision{Experts: tensor.Integers(bits).By(32)}, nil); err != nil || got != want {
			t.Errorf("%d bits: %d bytes, %v; want %d", bits, got, err, want)
		}
	}
}
