//go:build cuda

package cards

import (
	"errors"
	"testing"

	"krater/kernels/cuda/driver"
)

// TestMeasure runs all measurements at small sizes. Times on an emulated GPU mean nothing, so it
// refuses to measure that at other sizes.
func TestMeasure(t *testing.T) {
	p, err := Measure(Options{Small: true, Seed: 3})
	if errors.Is(err, ErrNoGPU) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.GPU == "" || p.Memory <= 0 || len(p.Few) != 2 {
		t.Errorf("%+v", p)
	}
	for name, s := range map[string]Speed{"few": p.Few[0], "more": p.Few[1], "keys": p.KV, "dense": p.Dense[0], "dense, many": p.Dense[1],
		"experts": p.Experts[0], "experts, many": p.Experts[1], "attention": p.Attention[0], "attention, many": p.Attention[1],
		"heads of 64": p.Heads[64][0], "heads of 512, many": p.Heads[512][1]} {
		if !(s.US > 0 && s.Bytes > 0 && s.Flops > 0 && s.Rows > 0 && s.Launches > 0) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for name, v := range map[string]float64{"reading": p.ReadGBps, "products": p.TFLOPs, "launch": p.LaunchUS, "node": p.NodeUS, "small copies": p.Copies[0].US,
		"copies": p.Copies[1].US, "copies beside": p.Busy.US, "round": p.RoundUS} {
		if !(v > 0) {
			t.Errorf("%s: %g", name, v)
		}
	}
	if p.Copies[0].Bytes >= p.Copies[1].Bytes || p.Busy.Bytes != p.Copies[1].Bytes || p.Experts[0].Rows >= p.Experts[1].Rows {
		t.Errorf("%+v", p)
	}
	if _, err := Measure(Options{}); p.Emulated && !errors.Is(err, ErrEmulated) {
		t.Errorf("an emulated GPU at a GPU's sizes: %v", err)
	}
	if _, err := Measure(Options{Small: true, Index: 63}); err == nil {
		t.Error("GPU 63 of this machine")
	}
}

// TestExpertsAlone: a block without a shared network gives correct results.
func TestExpertsAlone(t *testing.T) {
	r, err := open(Options{Seed: 5, Small: true})
	if errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	m := Small().moe
	m.shared = 0
	for _, rows := range []int{3, 70} {
		if row, err := r.row(mix(m, int4, int8, rows), b); err != nil || !row.Pass {
			t.Errorf("%d rows: %v, %+v", rows, err, row)
		}
	}
}
