package heat

import (
	"math"
	"slices"
	"testing"
)

// TestPlacedHeat: counts go to strategies as they are, and smaller by one factor where they
// are beyond 32 bits; a map that has seen nothing says nothing.
func TestPlacedHeat(t *testing.T) {
	m, err := New(Identity{}, Shape{Layers: []int32{1, 4}, Experts: 3, TopK: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Scaled(); got != nil || (*Map)(nil).Scaled() != nil {
		t.Errorf("nothing seen: %v", got)
	}
	add := func(layer int32, counts ...uint64) {
		t.Helper()
		if err := m.Add(layer, counts[0]+counts[1]+counts[2], counts); err != nil {
			t.Fatal(err)
		}
	}
	add(1, 5, 0, 7)
	add(4, 1, 2, 9)
	if got := m.Scaled(); !slices.EqualFunc(got, [][]uint32{{5, 0, 7}, {1, 2, 9}}, slices.Equal) {
		t.Errorf("%v", got)
	}
	add(1, 0, 1<<34, 0)
	got := m.Scaled()
	if got[0][1] < math.MaxUint32/2 || got[0][0] != 0 || got[1][2] != 9>>3 {
		t.Errorf("%v", got)
	}
}
