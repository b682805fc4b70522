package dispatch

import (
	"cmp"
	"slices"
)

// Borrower is a strategy for prompts that can borrow the slots of another strategy.
type Borrower interface {
	Strategy
	// Borrow is like Start, but the result has no experts that stay in its slots: only Setup.Kept
	// stay. It returns ErrNoRoom if the budget is too small.
	Borrow(s *Setup) (Start, error)
}

// Lends reports whether the experts of a start stay in their slots, so that another strategy may
// use the slots for a while: the lender copies the same experts back.
func (s *Start) Lends() bool { return len(s.Loads) > 0 && len(s.Loads) == s.Slots && s.Places == nil }

// Lend starts b in at most most slots of owner, a start that Lends. It sorts the owner's loads so that
// the coldest experts come last, and b gets the last lent slots. Slots of the result are numbered from
// the first lent slot. If the owner learns, its slots may hold other experts when they are lent. Then
// the result counts none of them as kept, and the caller calls Borrow again when it knows them.
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

// inFileOrder compares two experts by their order in files.
func inFileOrder(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Expert, b.Expert))
}

// byHeat sorts experts, the hottest first. Equal ones are sorted by id, then by layer.
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
