package dispatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestLend: whatever borrows slots of the hot set computes every expert of every layer, writes
// to no slot but the lent ones, and these hold the coldest experts.
func TestLend(t *testing.T) {
	tried := 0
	for _, s := range everyone(t) {
		b, ok := s.(Borrower)
		if !ok {
			continue
		}
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(seed, 11))
			for name, setup := range setups(r) {
				setup.Kept = nil // nobody else keeps experts
				owner, err := hotCachedStatic{}.Start(setup)
				if err != nil || !owner.Lends() {
					continue
				}
				name := fmt.Sprintf("%s, %s, seed %d", s.Name(), name, seed)
				start, lent, err := Lend(setup, &owner, b, owner.Slots)
				switch {
				case errors.Is(err, ErrNoRoom):
					continue
				case err != nil || start.Slots > lent || lent > owner.Slots:
					t.Fatalf("%s: %d slots of %d lent ones of %d: %v", name, start.Slots, lent, owner.Slots, err)
				}
				tried++
				checkCold(t, name, setup, owner.Loads, lent)
				borrowed(t, name, b, setup, &owner, &start, lent, r)
			}
		}
	}
	if tried < 200 {
		t.Errorf("%d cases lent something", tried)
	}
}

// checkCold holds the last experts to be no hotter than the others, each once.
func checkCold(t *testing.T, name string, s *Setup, loads []Load, lent int) {
	t.Helper()
	seen := map[Key]bool{}
	heat := func(l Load) uint32 { return s.heat(slices.Index(s.Layers, l.Layer), l.Expert) }
	for i, l := range loads {
		if l.Slot != int32(i) || seen[l.Key] {
			t.Fatalf("%s: load %d is %+v", name, i, l)
		}
		seen[l.Key] = true
		for _, cold := range loads[len(loads)-lent:] {
			if i < len(loads)-lent && heat(l) < heat(cold) {
				t.Fatalf("%s: %+v is lent, and %+v of heat %d is not", name, cold, l, heat(l))
			}
		}
	}
}

// borrowed runs passes through all layers in the slots that owner lends.
func borrowed(t *testing.T, name string, b Borrower, setup *Setup, owner, start *Start, lent int, r *rand.Rand) {
	t.Helper()
	residency := NewResidency()
	kept := &Start{Slots: owner.Slots, Loads: owner.Loads[:owner.Slots-lent]}
	residency.Add(kept)
	first := int32(owner.Slots - lent)
	residency.Share(start, first)
	for pass := range 3 {
		for index := range setup.Layers {
			in := &Step{Setup: setup, Start: start, First: first, Index: index, Phase: Prefill, Residency: residency}
			for e := range setup.Experts {
				if r.IntN(3) > 0 {
					in.Work = append(in.Work, Rows{int32(e), 1 + r.Int32N(9)})
				}
			}
			var d Decision
			b.Decide(&d, in)
			if len(d.Host) > 0 {
				t.Fatalf("%s: pass %d, layer %d: work for the host", name, pass, index)
			}
			if f := fault(in, &d); f != "" {
				t.Fatalf("%s: pass %d, layer %d: %s", name, pass, index, f)
			}
		}
	}
	for _, l := range kept.Loads {
		if slot, ok := residency.Slot(l.Key); !ok || slot != l.Slot {
			t.Fatalf("%s: %+v is gone", name, l)
		}
	}
}
