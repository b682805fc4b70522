package dispatch

import "fmt"

// Residency records which expert is in which slot of a device, and the order in which the slots of a
// place were last used. It has the slots of all strategies of the device, one after the other.
type Residency struct {
	slots []Key // free: Layer -1
	where map[Key]int32
	// The slots of a place are a list by last use.
	links  []link
	places map[int32]*Place // by first slot: the oldest (First) and the newest (Slots) of the list
}

// link is a slot's place in the order of use of its Place.
type link struct {
	place        *Place // nil: the slot is in none
	older, newer int32  // -1: none
}

// NewResidency returns a residency without slots.
func NewResidency() *Residency {
	return &Residency{where: map[Key]int32{}, places: map[int32]*Place{}}
}

// Add appends the slots of a start with the experts that it loads. It returns the first of these slots.
func (r *Residency) Add(s *Start) (first int32) {
	first = int32(len(r.slots))
	for range s.Slots {
		r.slots = append(r.slots, Key{Layer: -1})
		r.links = append(r.links, link{older: -1, newer: -1})
	}
	r.Share(s, first)
	return first
}

// Share is like Add for a start that uses existing slots, from first on, which are in no place.
func (r *Residency) Share(s *Start, first int32) {
	for _, p := range s.Places {
		p.First += first
		if p.Slots == 0 || s.Staged != nil || r.places[p.First] != nil {
			continue // a strategy that stages experts needs no order of use
		}
		ends := &Place{First: p.First, Slots: p.First + p.Slots - 1}
		r.places[p.First] = ends
		for slot := p.First; slot < p.First+p.Slots; slot++ {
			l := &r.links[slot]
			l.place = ends
			if slot > ends.First {
				l.older = slot - 1
			}
			if slot < ends.Slots {
				l.newer = slot + 1
			}
		}
	}
	for _, l := range s.Loads {
		r.Load(Load{first + l.Slot, l.Key})
	}
}

// Slots returns the number of slots.
func (r *Residency) Slots() int { return len(r.slots) }

// Slot returns the slot of an expert, and false if it has none.
func (r *Residency) Slot(k Key) (int32, bool) {
	slot, ok := r.where[k]
	return slot, ok
}

// At returns the expert in a slot, and false if the slot is empty.
func (r *Residency) At(slot int32) (Key, bool) { return r.slots[slot], r.slots[slot].Layer >= 0 }

// Load puts an expert into a slot, in place of the expert in it. It panics if the slot does not exist
// or the expert has a slot already: both are faults of the strategy.
func (r *Residency) Load(l Load) {
	if _, ok := r.where[l.Key]; ok || l.Slot < 0 || int(l.Slot) >= len(r.slots) {
		panic(fmt.Sprintf("dispatch: expert %d of layer %d to slot %d of %d, there already: %v", l.Expert, l.Layer, l.Slot, len(r.slots), ok))
	}
	r.Drop(l.Slot)
	r.slots[l.Slot], r.where[l.Key] = l.Key, l.Slot
	r.touch(l.Slot)
}

// Drop empties a slot, because its expert is to be replaced or a copy into it failed.
func (r *Residency) Drop(slot int32) {
	if old := r.slots[slot]; old.Layer >= 0 {
		delete(r.where, old)
		r.slots[slot].Layer = -1
	}
}

// Use records a use of an expert. The expert must be in a slot.
func (r *Residency) Use(k Key) { r.touch(r.where[k]) }

// Apply records the loads and uses of a decision, wave by wave.
func (r *Residency) Apply(out *Decision, in *Step) {
	for _, w := range out.Waves {
		r.ApplyWave(&w, in)
	}
}

// ApplyWave records the loads and uses of one wave.
func (r *Residency) ApplyWave(w *Wave, in *Step) {
	for _, l := range w.Loads {
		r.Load(l)
	}
	for _, i := range w.Work {
		r.Use(Key{in.Layer(), in.Work[i].Expert})
	}
}

// touch makes a slot the newest of its place.
func (r *Residency) touch(slot int32) {
	l := &r.links[slot]
	if l.place == nil || l.place.Slots == slot {
		return
	}
	if l.older >= 0 {
		r.links[l.older].newer = l.newer
	} else {
		l.place.First = l.newer
	}
	r.links[l.newer].older = l.older
	r.links[l.place.Slots].newer = slot
	l.older, l.newer, l.place.Slots = l.place.Slots, -1, slot
}

// oldest returns the slot of a place that was used longest ago.
func (r *Residency) oldest(p Place) int32 { return r.places[p.First].First }

// newer returns the slot of the same place that was used next after slot, -1 if slot is the newest.
func (r *Residency) newer(slot int32) int32 { return r.links[slot].newer }
