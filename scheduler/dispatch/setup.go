package dispatch

import (
	"fmt"
	"math"
	"slices"
)

// Bounds of a setup, above any model there is: slots and keys are int32.
const (
	layersMost  = 1 << 12
	expertsMost = 1 << 16
)

// check reports the first fault of a setup.
func (s *Setup) check() error {
	switch {
	case len(s.Layers) > layersMost || s.Experts < 1 || s.Experts > expertsMost:
		return fmt.Errorf("%w: %d layers of %d experts", ErrSetup, len(s.Layers), s.Experts)
	case s.Bytes < 1 || s.Budget < 0:
		return fmt.Errorf("%w: experts of %d bytes, a budget of %d", ErrSetup, s.Bytes, s.Budget)
	case s.Heat != nil && len(s.Heat) != len(s.Layers):
		return fmt.Errorf("%w: heat of %d layers, the model has %d", ErrSetup, len(s.Heat), len(s.Layers))
	}
	for i, l := range s.Layers {
		if l < 0 || i > 0 && l <= s.Layers[i-1] {
			return fmt.Errorf("%w: layers %v do not rise", ErrSetup, s.Layers)
		}
	}
	for i, counts := range s.Heat {
		if len(counts) != s.Experts {
			return fmt.Errorf("%w: layer %d: heat of %d experts of %d", ErrSetup, s.Layers[i], len(counts), s.Experts)
		}
	}
	return nil
}

// all returns the number of experts.
func (s *Setup) all() int { return len(s.Layers) * s.Experts }

// slots returns the number of experts that fit into the budget, at most all.
func (s *Setup) slots() int { return int(min(int64(s.all()), s.Budget/s.Bytes)) }

// room refuses slots that exceed the budget.
func (s *Setup) room(name string, slots int) error {
	switch {
	case int64(slots) > math.MaxInt64/s.Bytes:
		return fmt.Errorf("%s: %w: %d experts of %d bytes", name, ErrNoRoom, slots, s.Bytes)
	case int64(slots)*s.Bytes > s.Budget:
		return fmt.Errorf("%s: %w: %d experts of %d bytes need %d bytes, the budget is %d",
			name, ErrNoRoom, slots, s.Bytes, int64(slots)*s.Bytes, s.Budget)
	}
	return nil
}

// heat is how hot an expert is.
func (s *Setup) heat(index int, expert int32) uint32 {
	if s.Heat == nil {
		return 0
	}
	return s.Heat[index][expert]
}

// kept is s.Kept as a set.
func (s *Setup) kept() map[Key]bool {
	kept := make(map[Key]bool, len(s.Kept))
	for _, k := range s.Kept {
		kept[k] = true
	}
	return kept
}

// hottest are the n hottest experts that are not kept already, the hottest first; of
// equal ones those of lower ids, then of earlier layers.
func (s *Setup) hottest(n int) []Key {
	kept := s.kept()
	list := make([]Key, 0, s.all())
	for _, layer := range s.Layers {
		for e := range int32(s.Experts) {
			if k := (Key{layer, e}); !kept[k] {
				list = append(list, k)
			}
		}
	}
	s.byHeat(list)
	return list[:min(n, len(list))]
}

// keep returns a start that loads experts, layer by layer, as they lie in files.
func keep(keys []Key) Start {
	slices.SortFunc(keys, inFileOrder)
	s := Start{Slots: len(keys), Loads: make([]Load, len(keys))}
	for i, k := range keys {
		s.Loads[i] = Load{int32(i), k}
	}
	return s
}
