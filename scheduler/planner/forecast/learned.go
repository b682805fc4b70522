package forecast

import (
	"fmt"
	"math"
	"slices"
)

// Learned refines the skew of a case for the strategy learned.
type Learned struct {
	// Hits gives the share of the work that learned finds on the GPU: Hits.Hot(n) is the share for a memory
	// of n experts per layer. If it has no experts, the case's skew is used: the hottest experts stay on the GPU.
	Hits Skew
	// Slow is the factor by which steps of generated tokens take longer than predicted; 0 means 1.
	Slow float64
}

// Hit is a point of a hit curve.
type Hit struct {
	Places float64 `json:"places"` // share of all experts that a memory holds
	Share  float64 `json:"share"`  // share of the choices whose expert was in it
}

// Replayed returns the skew of a hit curve, whose places rise. It interpolates linearly over the upper
// convex hull of the points, since a skew falls: no expert has more work than a hotter one.
func Replayed(curve []Hit, experts int) (Skew, error) {
	hull := []Hit{{}}
	for _, p := range append(slices.Clone(curve), Hit{1, 1}) {
		last := hull[len(hull)-1]
		if !(p.Places > last.Places && p.Places <= 1 && p.Share >= 0 && p.Share <= 1) {
			if p.Places == 1 && last.Places == 1 {
				break // the curve has its end
			}
			return Skew{}, fmt.Errorf("%w: a hit curve of %v", ErrShape, curve)
		}
		for n := len(hull); n > 1; n = len(hull) {
			a, b := hull[n-2], hull[n-1]
			if (b.Share-a.Share)*(p.Places-a.Places) > (p.Share-a.Share)*(b.Places-a.Places) {
				break
			}
			hull = hull[:n-1]
		}
		hull = append(hull, p)
	}
	s := Skew{"replayed", make([]float64, max(1, experts))}
	before, at := 0.0, 1
	for i := range s.share {
		places := float64(i+1) / float64(len(s.share))
		for at < len(hull)-1 && hull[at].Places < places {
			at++
		}
		a, b := hull[at-1], hull[at]
		now := a.Share + (b.Share-a.Share)*(places-a.Places)/(b.Places-a.Places)
		s.share[i], before = max(0, now-before), now
	}
	slices.SortFunc(s.share, func(a, b float64) int { // a step within which the line bends may round otherwise
		switch {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})
	return s, nil
}

// sharper returns a skew with the shares of s raised to a power and scaled to the sum 1. Power 0 gives a
// uniform skew, a power above 1 hotter experts.
func (s Skew) sharper(power float64) Skew {
	out, sum := Skew{s.Name, make([]float64, len(s.share))}, 0.0
	for i, x := range s.share {
		out.share[i] = math.Pow(x/s.share[0], power)
		sum += out.share[i]
	}
	for i := range out.share {
		out.share[i] /= sum
	}
	return out
}

// learned predicts a step as split does, with the experts that the strategy finds.
func learned(c *calc, l layout, m float64, few bool) Time {
	x := *c
	if c.found != nil {
		x.picks = c.found
	}
	return split(&x, l, m, few)
}

// slower returns t with every time multiplied.
func (t Time) slower(times float64) Time {
	t.Total, t.Card, t.Copies, t.Host, t.HandOver, t.Launches = times*t.Total, times*t.Card, times*t.Copies, times*t.Host, times*t.HandOver, times*t.Launches
	return t
}

// Served holds averages over steps of generated tokens that were served with the strategy learned.
type Served struct {
	Tokens  int64   `json:"tokens"`   // tokens in the averages
	Places  float64 `json:"places"`   // share of the model's experts that had a place on the GPU
	Rows    float64 `json:"rows"`     // rows of a step
	Seconds float64 `json:"seconds"`  // time of a step
	HitRate float64 `json:"hit_rate"` // share of the experts needed that were on the GPU
	Context int     `json:"context"`  // tokens before a generated one; 0: as in the case
}

// ServedLeast is the least number of served tokens by which a forecast is corrected.
const ServedLeast = 64

// Bounds of a correction. Figures beyond them cannot come from a step of the model.
const (
	sharpest = 16
	slowest  = 100
)

// Correct changes the case so that its forecast for the strategy learned equals the served figures: first
// the hit rate, by a sharper or a flatter skew, then the time. If v has fewer than ServedLeast tokens,
// Correct returns false and changes nothing.
func (c *Case) Correct(v Served) (bool, error) {
	if v.Tokens < ServedLeast {
		return false, nil
	}
	if !(v.Places >= 0 && v.Places <= 1 && v.Rows >= 1 && v.Rows <= countMost && v.Seconds > 0 && v.HitRate >= 0 && v.HitRate <= 1) {
		return false, fmt.Errorf("%w: served %+v", ErrShape, v)
	}
	k := *c
	k.Learned.Slow = 0
	if v.Context > 0 {
		k.Work.Context = v.Context
	}
	base := k.Learned.Hits
	if base.share == nil {
		base = k.Skew
	}
	if len(base.share) > 1 && base.share[len(base.share)-1] == base.share[0] {
		base = Zipf(k.Shape.Experts) // no power of a uniform skew is another
	}
	stay := int(math.Round(v.Places * float64(k.Shape.all())))
	l := layout{kept: stay / k.Shape.MoE, more: stay % k.Shape.MoE}
	step := func(power float64) (Time, error) {
		k.Learned.Hits = base.sharper(power)
		x, err := k.chooser()
		if err != nil {
			return Time{}, err
		}
		return x.tokens(&strategies[learnedNumber], l, v.Rows), nil
	}
	low, high := 0.0, float64(sharpest)
	if stay == 0 || stay == k.Shape.all() { // no skew changes what is found
		low, high = 1, 1
	}
	for range 40 {
		mid := (low + high) / 2
		t, err := step(mid)
		if err != nil {
			return false, err
		}
		if t.Found < v.HitRate*t.Wanted {
			low = mid
		} else {
			high = mid
		}
	}
	t, err := step((low + high) / 2)
	if err != nil {
		return false, err
	}
	k.Learned.Hits.Name = "served"
	c.Learned = Learned{Hits: k.Learned.Hits, Slow: min(slowest, max(1./slowest, v.Seconds/t.Total))}
	return true, nil
}
