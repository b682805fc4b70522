package dispatch

import (
	"cmp"
	"slices"
)

// Borrower is a strategy for prompts that can work in slots which another strategy lends it and
// takes back afterwards.
type Borrower interface {
	Strategy
	// Borrow is Start without experts that stay: Setup.Kept are the experts that stay,
	// outside of the slots. It fails with ErrNoRoom when the budget is too small.
	Borrow(s *Setup) (Start, error)
}

// Lends reports whether the experts of a start stay in their slots, so that another strategy may
// use the slots for a while: the lender copies the same experts back.
func (s *Start) Lends() bool { return len(s.Loads) > 0 && len(s.Loads) == s.Slots && s.Places == nil }

// Lend starts b in slots of a start that Lends, in no more of them than most. The start's loads
// are put in a new order: the coldest experts come last, and b gets their slots, the last
// lent ones. Slots of the result count from the first of these. If the owner learns, other experts
// may be in its slots by then: the start counts none of them as kept, and the caller makes another one
// (Borrow) when it knows.
func Lend(s *Setup, owner *Start, b Borrower, most int) (start Start, lent int, err error) {
	keys := make([]Key, len(owner.Loads))
	for i, l := range owner.Loads {
		keys[i] = l.Key
	}
	s.byHeat(keys)
	for most = min(most, len(keys)); ; lent = start.Slots {
		own := *s
		own.Budget = int64(most) * s.Bytes
		if !owner.Learns {
			own.Kept = slices.Concat(s.Kept, keys[:len(keys)-lent])
		}
		if start, err = b.Borrow(&own); err != nil {
			return Start{}, 0, err
		}
		if start.Slots > lent {
			continue // these experts have to be copied, too
		}
		slices.SortFunc(keys[:len(keys)-lent], inFileOrder)
		slices.SortFunc(keys[len(keys)-lent:], inFileOrder)
		for i, k := range keys {
			owner.Loads[i] = Load{int32(i), k}
		}
		return start, lent, nil
	}
}

// inFileOrder is the order of experts in files.
func inFileOrder(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Expert, b.Expert))
}

// byHeat sorts experts, the hottest first; of equal ones those of lower ids, then of
// earlier layers.
func (s *Setup) byHeat(keys []Key) {
	if len(keys) == 0 {
		return
	}
	index := make([]int, s.Layers[len(s.Layers)-1]+1) // of a layer, in s.Layers
	for i, l := range s.Layers {
		index[l] = i
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(s.heat(index[b.Layer], b.Expert), s.heat(index[a.Layer], a.Expert)),
			cmp.Compare(a.Expert, b.Expert), cmp.Compare(a.Layer, b.Layer))
	})
}
