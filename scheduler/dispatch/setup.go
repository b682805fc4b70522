package dispatch

import (
	"fmt"
	"math"
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
	case s.Resident != nil && len(s.Resident) != len(s.Layers):
		return fmt.Errorf("%w: resident experts of %d layers, the model has %d", ErrSetup, len(s.Resident), len(s.Layers))
	}
	for i, l := range s.Layers {
		if l < 0 || i > 0 && l <= s.Layers[i-1] {
			return fmt.Errorf("%w: layers %v do not rise", ErrSetup, s.Layers)
		}
	}
	for i, experts := range s.Resident {
		seen := map[int32]bool{}
		for _, e := range experts {
			if e < 0 || int(e) >= s.Experts || seen[e] {
				return fmt.Errorf("%w: layer %d: resident expert %d is twice there or not one of %d", ErrSetup, s.Layers[i], e, s.Experts)
			}
			seen[e] = true
		}
	}
	return nil
}

// residents is how many experts are to stay on the device.
func (s *Setup) residents() int {
	if s.Resident == nil {
		return len(s.Layers) * s.Experts
	}
	n := 0
	for _, experts := range s.Resident {
		n += len(experts)
	}
	return n
}

// resident calls f for every expert that is to stay on the device, layer by layer.
func (s *Setup) resident(f func(Key)) {
	for i, layer := range s.Layers {
		if s.Resident != nil {
			for _, e := range s.Resident[i] {
				f(Key{layer, e})
			}
			continue
		}
		for e := range s.Experts {
			f(Key{layer, int32(e)})
		}
	}
}

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

// First is a resident set for a setup whose budget holds a part of the experts:
// the first ones of each layer by id, the layers evenly.
func (s *Setup) First() [][]int32 {
	each := s.Experts
	if len(s.Layers) > 0 {
		each = int(min(int64(each), s.Budget/s.Bytes/int64(len(s.Layers))))
	}
	sets := make([][]int32, len(s.Layers))
	for i := range sets {
		sets[i] = make([]int32, each)
		for e := range sets[i] {
			sets[i][e] = int32(e)
		}
	}
	return sets
}
