package heatfile

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"krater/scheduler/heat"
)

// TestHeatKeeper: the file has every token once however often it is saved, and beyond
// what a map remembers the older ones weigh less.
func TestHeatKeeper(t *testing.T) {
	shape := heat.Shape{Layers: []int32{0}, Experts: 2, TopK: 1}
	live, err := heat.New(heat.Identity{}, shape)
	if err != nil {
		t.Fatal(err)
	}
	count := func(first, second uint64) {
		t.Helper()
		if err := live.Add(0, first+second, []uint64{first, second}); err != nil {
			t.Fatal(err)
		}
	}
	total, _ := heat.New(heat.Identity{}, shape)
	total.Add(0, 10, []uint64{10, 0})
	count(5, 0) // before the keeper began
	path := filepath.Join(t.TempDir(), "kept.heat")
	k, err := Keep(path, total, live.Clone)
	if err != nil {
		t.Fatal(err)
	}
	saved := func(tokens uint64, first uint64) {
		t.Helper()
		if err := k.save(); err != nil {
			t.Fatal(err)
		}
		m, err := heat.Load(path)
		if err != nil || m.Seen() != tokens || m.Counts(0)[0] != first {
			t.Fatalf("%v: %d tokens, %v, want %d and %d", err, m.Seen(), m.Counts(0), tokens, first)
		}
	}
	saved(10, 10)
	count(2, 3)
	saved(15, 12)
	saved(15, 12)
	count(0, heatMemory)
	saved((heatMemory+15)/2+1, 6) // to the nearest even whole
	count(0, 3*heatMemory)
	saved(uint64(math.RoundToEven(float64(3*heatMemory+(heatMemory+15)/2+1)/4)), 2)
	// A save that fails loses nothing.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	k.path = filepath.Join(path, "no", "folder")
	count(1, 0)
	if err := k.save(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%v", err)
	}
	k.path = path
	before := k.total.Clone()
	k.SaveOr(zerolog.Nop())
	if m, err := heat.Load(path); err != nil || m.Counts(0)[0] != before.Counts(0)[0] {
		t.Errorf("what the failed save had: %v", err)
	}
}
