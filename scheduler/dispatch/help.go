package dispatch

import "slices"

// Help holds the times of a layer's experts for some rows on a rank and on a helper, another device that
// holds some of the experts. All times are in the same unit.
type Help struct {
	Alone float64 // all experts on the rank
	Held  float64 // the helper's experts on the helper, with the transfers there and back
	Carry float64 // the transfers alone
	Part  float64 // share of the rows whose expert the helper holds
	Turn  float64 // fixed cost of dividing a layer between two devices
}

const (
	// Shares are multiples of 1/helpParts, so that measurements that differ a little give the same share.
	helpParts = 16
	// helpGain is the largest time of a layer with the helper, relative to the time without it, at which
	// the helper is used.
	helpGain = 0.97
)

// time returns the time of a layer if the helper computes a share of the rows.
func (h *Help) time(share float64) float64 {
	return h.Turn + max(h.Alone*(1-share), h.Carry+(h.Held-h.Carry)*share/h.Part)
}

// Share returns the share of the rows that the helper should compute. It is 0 if the helper would not
// make the layer shorter.
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

// Helps reports whether a layer takes less time if the helper computes a share of the rows.
func (h *Help) Helps(share float64) bool {
	return share > 0 && h.Part > 0 && h.time(share) < h.Alone*helpGain
}

// Count returns the number of experts chosen in a list.
func Count(list []bool) (n int) {
	for _, chosen := range list {
		if chosen {
			n++
		}
	}
	return n
}

// Divide chooses the experts of a layer that a helper computes, so that they get the given share of the
// rows. heat [experts] counts the rows of each expert; nil means equal counts. may [experts] says
// which experts may be chosen; nil means all. Apart from rounding, the experts chosen for a smaller
// share are among those for a larger one.
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
