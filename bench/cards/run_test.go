//go:build cuda

package cards

import (
	"errors"
	"strings"
	"testing"

	"krater/kernels/cuda/driver"
	"krater/kernels/tensor"
)

// TestSmallTable runs every case at its small size, on a GPU or the emulator.
func TestSmallTable(t *testing.T) {
	match, want := func(string) bool { return true }, 0
	if testing.Short() { // packages native and delta have what is left out
		match = func(name string) bool {
			return !strings.HasPrefix(name, "delta prefill 8 x ") && (!strings.Contains(name, " E=3 ") || strings.HasSuffix(name, " Q4_K"))
		}
	}
	for _, c := range Table(Small()) {
		if match(c.Name()) {
			want++
		}
	}
	rep, err := Run(Options{Small: true, Seed: 7, Match: match})
	if errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Rows) != want {
		t.Fatalf("%d rows of %d", len(rep.Rows), want)
	}
	if want := len(trips()); len(rep.Trips) != want {
		t.Fatalf("%d trips of %d", len(rep.Trips), want)
	}
	for _, f := range rep.Faults() {
		t.Error(f)
	}
}

// TestTimes tests the ceilings and the timed path, with little work.
func TestTimes(t *testing.T) {
	r, err := open(Options{Seed: 5})
	if errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := errors.Join(r.openLibrary(), r.ceilings(1<<16, 1)); err != nil {
		t.Fatal(err)
	}
	top := r.rep.Ceilings
	if top.ReadGBps < 0 || top.CopyGBps < 0 || top.TFLOPs < 0 {
		t.Errorf("%+v", top)
	}
	r.rep.Ceilings = Ceilings{ReadGBps: 1, CopyGBps: 1, TFLOPs: 1}
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	trip := newTrip(2, 64, tensor.BF16, false)
	if err := r.trip(trip); err != nil || trip.Fault != "" || trip.US <= 0 {
		t.Errorf("%+v: %v", trip, err)
	}
	for _, c := range []*Case{addNorm(1, 64), weightedSum(2, 2, 64)} {
		row, err := r.row(c, b)
		if err != nil {
			t.Fatal(err)
		}
		if !row.Pass || row.US <= 0 || row.GBps <= 0 || row.Share <= 0 || row.Bound != "memory" || row.Source == "" {
			t.Errorf("%+v", row)
		}
	}
}
