package kerneltest

import (
	"math"
	"strings"
	"testing"
	"unsafe"
)

func TestCompareNamesTheWorstElement(t *testing.T) {
	want := []float32{1, 2, 3, 4, 5, 6}
	got := []float32{1, 2.5, 3, 4, 5.9, 6}
	err := Compare(got, want, 3, func(i int) float64 { return 0.1 })
	if err == nil || !strings.Contains(err.Error(), "2 of 6") || !strings.Contains(err.Error(), "[1, 1]: 5.9, want 5") {
		t.Errorf("%v", err)
	}
	if err := Compare(got, want, 3, func(i int) float64 { return 1 }); err != nil {
		t.Errorf("within tolerance: %v", err)
	}
}

func TestCompareOfSpecialValues(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	loose := func(int) float64 { return 1e30 }
	if err := Compare([]float32{nan, inf}, []float32{nan, inf}, 2, loose); err != nil {
		t.Error(err)
	}
	for _, pair := range [][2]float32{{nan, 1}, {1, nan}, {inf, 1}, {inf, -inf}, {nan, inf}} {
		if Compare(pair[:1], pair[1:], 1, loose) == nil {
			t.Errorf("%g passes for %g", pair[0], pair[1])
		}
	}
	if Compare([]float32{1}, []float32{1, 2}, 1, loose) == nil {
		t.Error("a missing element passes")
	}
}

func TestSameBits(t *testing.T) {
	zero, negative := float32(0), float32(math.Copysign(0, -1))
	if SameBits([]float32{zero}, []float32{negative}) == nil {
		t.Error("the two zeros have other bits")
	}
	if err := SameBits([]float32{negative, 2}, []float32{negative, 2}); err != nil {
		t.Error(err)
	}
}

func TestGuardSeesOverruns(t *testing.T) {
	for _, misalign := range []int{0, 2, 34} {
		g := Guard[uint16](7, misalign)
		if at := uintptr(unsafe.Pointer(g.First())) % 64; at != uintptr(misalign) {
			t.Errorf("misaligned by %d, want %d", at, misalign)
		}
		for i := range g.Data {
			g.Data[i] = 1
		}
		if err := g.Check(); err != nil {
			t.Error(err)
		}
		for _, off := range []int{-2, 14} {
			p := (*uint16)(unsafe.Add(unsafe.Pointer(g.First()), off))
			before := *p
			*p = 1
			if g.Check() == nil {
				t.Errorf("a write at byte %d was missed", off)
			}
			*p = before
		}
	}
}

func TestDotToleranceFollowsTheData(t *testing.T) {
	x, w := []float32{3, 4}, []float32{0, 2, 1, 0}
	tol := DotTolerance(x, w, 2)
	if r := tol(0) / tol(1); math.Abs(r-2) > 1e-9 {
		t.Errorf("ratio %g, the norms give 2", r)
	}
	if tol(0) > 1e-4 || tol(0) < 1e-7 {
		t.Errorf("tolerance %g of values near 10", tol(0))
	}
}

func TestAllocationsLeavesOutWhatHappensOnce(t *testing.T) {
	var kept []byte
	runs := 0
	if n := Allocations(func() {
		if runs++; runs <= 4 {
			kept = make([]byte, 64)
		}
	}); n != 0 {
		t.Errorf("%v allocations of a function that has ceased to allocate", n)
	}
	if n := Allocations(func() { kept = make([]byte, 64) }); n != 1 {
		t.Errorf("%v allocations of a function that allocates each time", n)
	}
	_ = kept
}
