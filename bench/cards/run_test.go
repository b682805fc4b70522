//go:build cuda

package cards

import (
	"errors"
	"testing"

	"krater/kernels/cuda/driver"
)

// TestSmallTable runs every case at its small size, on a card or the emulator.
func TestSmallTable(t *testing.T) {
	rep, err := Run(Options{Small: true, Seed: 7})
	if errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := len(Table(Small())); len(rep.Rows) != want {
		t.Fatalf("%d rows of %d", len(rep.Rows), want)
	}
	for _, f := range rep.Faults() {
		t.Error(f)
	}
}
