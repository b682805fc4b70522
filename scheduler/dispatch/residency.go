package dispatch

import "fmt"

// Residency says which expert lies in which slot of a device.
type Residency struct {
	slots []Key // free: Layer -1
	where map[Key]int32
}

// NewResidency is what is there after a start.
func NewResidency(s *Start) *Residency {
	r := &Residency{slots: make([]Key, s.Slots), where: make(map[Key]int32, s.Slots)}
	for i := range r.slots {
		r.slots[i].Layer = -1
	}
	r.Load(s.Loads)
	return r
}

// Slots is how many there are.
func (r *Residency) Slots() int { return len(r.slots) }

// Slot is where an expert lies; false where it does not.
func (r *Residency) Slot(k Key) (int32, bool) {
	slot, ok := r.where[k]
	return slot, ok
}

// Load puts experts into slots, in place of what is there. A slot that does not
// exist or an expert that is there already panics: the strategy is broken.
func (r *Residency) Load(loads []Load) {
	for _, l := range loads {
		if _, ok := r.where[l.Key]; ok || l.Slot < 0 || int(l.Slot) >= len(r.slots) {
			panic(fmt.Sprintf("dispatch: expert %d of layer %d to slot %d of %d, there already: %v", l.Expert, l.Layer, l.Slot, len(r.slots), ok))
		}
		if old := r.slots[l.Slot]; old.Layer >= 0 {
			delete(r.where, old)
		}
		r.slots[l.Slot], r.where[l.Key] = l.Key, l.Slot
	}
}
