package forecast

import (
	"fmt"
	"math"
	"slices"
)

// Skew says how the work of a layer is divided among its experts, the same for all
// layers: how much of it each has, the hottest first.
type Skew struct {
	Name  string
	share []float64 // falling, 1 together
}

// Uniform gives all experts the same work.
func Uniform(experts int) Skew {
	s := Skew{"uniform", make([]float64, max(1, experts))}
	for i := range s.share {
		s.share[i] = 1 / float64(len(s.share))
	}
	return s
}

// What trained routers do: the hottest quarter of a layer's experts has half of the
// work (krater-tiny's 47 to 78 %).
const (
	hotExperts = 0.25
	hotWork    = 0.50
)

// Zipf gives the nth hottest expert work that falls as a power of n, so that the
// hottest quarter has half of it. The same experts are hot in every prompt.
func Zipf(experts int) Skew {
	low, high := 0.0, 8.0
	for range 60 {
		mid := (low + high) / 2
		if s := power(experts, mid); s.Hot(int(math.Ceil(hotExperts*float64(experts)))) < hotWork {
			low = mid
		} else {
			high = mid
		}
	}
	return power(experts, low)
}

func power(experts int, exponent float64) Skew {
	s, sum := Skew{"zipf", make([]float64, max(1, experts))}, 0.0
	for i := range s.share {
		s.share[i] = math.Pow(float64(i+1), -exponent)
		sum += s.share[i]
	}
	for i := range s.share {
		s.share[i] /= sum
	}
	return s
}

// Counted is the skew of counts [layer][expert], how often each expert was chosen: the
// mean of what the nth hottest of each layer has. Layers that nobody counted do not
// matter; none at all is uniform.
func Counted(counts [][]uint32, experts int) (Skew, error) {
	s, layers := Skew{Name: "counted", share: make([]float64, max(1, experts))}, 0
	for _, layer := range counts {
		if len(layer) != experts {
			return Skew{}, fmt.Errorf("skew: counts of %d experts, there are %d", len(layer), experts)
		}
		sum := 0.0
		for _, n := range layer {
			sum += float64(n)
		}
		if sum == 0 {
			continue
		}
		sorted := slices.Sorted(slices.Values(layer))
		for i, n := range sorted {
			s.share[experts-1-i] += float64(n) / sum
		}
		layers++
	}
	if layers == 0 {
		return Uniform(experts), nil
	}
	for i := range s.share {
		s.share[i] /= float64(layers)
	}
	return s, nil
}

// Hot is the part of all work that the n hottest experts have.
func (s Skew) Hot(n int) float64 {
	sum := 0.0
	for _, x := range s.share[:min(max(0, n), len(s.share))] {
		sum += x
	}
	return min(1, sum)
}

// picks is how likely a row takes each expert when it takes k of them: what would be
// above 1 goes to the others, in proportion.
func (s Skew) picks(k int) []float64 {
	q := make([]float64, len(s.share))
	fixed, rest := 0, 1.0 // those that are taken always, the share of the others
	for {
		scale := float64(k-fixed) / rest
		if rest <= 0 || fixed >= k {
			scale = 0
		}
		i := fixed
		for i < len(q) && s.share[i]*scale >= 1 {
			rest -= s.share[i]
			i++
		}
		if i == fixed {
			for i := range q {
				q[i] = min(1, s.share[i]*scale)
				if i < fixed {
					q[i] = 1
				}
			}
			return q
		}
		fixed = i
	}
}

// active is how many of some experts at least one of m rows takes.
func active(picks []float64, m float64) (n float64) {
	for _, q := range picks {
		n += chosen(q, m)
	}
	return n
}

// chosen is how likely one of m rows takes an expert that each takes with q.
func chosen(q, m float64) float64 {
	if q >= 1 {
		return 1
	}
	return -math.Expm1(m * math.Log1p(-q)) // 1 - (1-q)^m
}

// taken is how many experts m rows take of some, one that several rows take counted
// as often.
func taken(picks []float64, m float64) (n float64) {
	for _, q := range picks {
		n += m * q
	}
	return n
}

// Parts of the experts a step of m rows needs that are found in places for fewer than
// all, where what was used longest ago makes room. They follow Che's approximation (Che,
// Tung and Wang, 2002): an expert stays as many steps as it takes for the places to be
// filled by others. Steps are taken to be independent of each other.

// ownHits is of places that one layer has for itself. What is found is used before others
// come, so that even too few of them for a step keep something of the one before.
func ownHits(picks []float64, m, places float64) float64 {
	need := active(picks, m)
	switch {
	case need == 0 || places >= float64(len(picks)):
		return 1
	case places <= need:
		return places / need * again(picks, m, 1)
	}
	return again(picks, m, window(picks, m, places))
}

// sharedHits returns the hits in places that many layers share; places is the average per layer.
// When a layer comes again, one or more whole steps have passed: nothing is found if the places
// do not hold one step.
func sharedHits(picks []float64, m, places float64) float64 {
	need := active(picks, m)
	switch {
	case need == 0 || places >= float64(len(picks)):
		return 1
	case places < need:
		return 0
	}
	return again(picks, m, math.Floor(window(picks, m, places)))
}

// slotHits returns the hits in places of which each belongs to one expert of each of the given
// number of layers: it holds the expert of the layer that wanted it last.
func slotHits(picks []float64, m, layers float64) float64 {
	need := active(picks, m)
	if need == 0 || layers <= 1 {
		return 1
	}
	quiet := math.Pow(1-need/float64(len(picks)), layers-1) // no other layer wanted it since
	found := 0.0
	for _, q := range picks {
		c := chosen(q, m)
		found += c * quiet * c / (1 - quiet*(1-c))
	}
	return found / need
}

// window returns the number of steps, at least 1, that need the given number of experts.
func window(picks []float64, m, experts float64) float64 {
	low, high := 1.0, 2.0
	for active(picks, m*high) < experts && high < 1e12 {
		low, high = high, 2*high
	}
	for range 60 {
		if mid := (low + high) / 2; active(picks, m*mid) < experts {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// again returns the part of a step's experts that the given number of steps before it had too.
func again(picks []float64, m, steps float64) float64 {
	need, found := 0.0, 0.0
	for _, q := range picks {
		c := chosen(q, m)
		need += c
		found += c * chosen(q, m*steps)
	}
	return found / need
}
