package dispatch

import "slices"

// Help is how long a layer's experts take for some rows, in one unit, on a rank and with a helper: another
// device that holds some of them.
type Help struct {
	Alone float64 // all of them on the rank
	Held  float64 // on the helper, those that it holds, with the ways there and back
	Carry float64 // the same for none of them
	Part  float64 // of the rows, those of experts that the helper holds
	Turn  float64 // what it takes that two devices work on a layer, besides
}

const (
	// helpParts is how finely experts are divided: a measurement that differs a little divides them alike.
	helpParts = 16
	// helpGain is how much less time a layer has to take, or the helper has no part in it.
	helpGain = 0.97
)

// time is that of a layer of which the helper computes a share.
func (h *Help) time(share float64) float64 {
	return h.Turn + max(h.Alone*(1-share), h.Carry+(h.Held-h.Carry)*share/h.Part)
}

// Share is the part of the rows that the helper should compute; 0: it would not make the layer shorter.
func (h *Help) Share() (share float64) {
	if h.Part <= 0 {
		return 0
	}
	least := h.Alone * helpGain
	for i := 1; i <= int(h.Part*helpParts+0.5); i++ {
		s := min(float64(i)/helpParts, h.Part)
		if t := h.time(s); t < least {
			share, least = s, t
		}
	}
	return share
}

// Helps reports whether a layer is shorter with a share than without.
func (h *Help) Helps(share float64) bool {
	return share > 0 && h.Part > 0 && h.time(share) < h.Alone*helpGain
}

// Count is how many experts of a list are chosen.
func Count(list []bool) (n int) {
	for _, chosen := range list {
		if chosen {
			n++
		}
	}
	return n
}

// Divide chooses experts of a layer for a helper that get a share of the rows, by heat; nil: all have the same. Only
// those that may be chosen are, nil: all may. What is chosen for a smaller share is chosen for a larger one as far as
// rounding allows.
func Divide(experts int, heat []uint32, may []bool, share float64) []bool {
	order := make([]int, 0, experts)
	all := 0.0
	of := func(e int) float64 {
		if heat == nil {
			return 1
		}
		return float64(heat[e]) + 1
	}
	for e := range experts {
		all += of(e)
		if may == nil || may[e] {
			order = append(order, e)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := of(a), of(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	possible := 0.0
	for _, e := range order {
		possible += of(e)
	}
	// Of the experts that may be chosen the wanted part is taken evenly along the order, so that both sides
	// have hot and cold ones.
	part := min(1, share*all/max(possible, 1))
	chosen, seen, taken := make([]bool, experts), 0.0, 0.0
	for _, e := range order {
		seen += of(e)
		if taken+of(e)/2 < part*seen {
			chosen[e] = true
			taken += of(e)
		}
	}
	return chosen
}
