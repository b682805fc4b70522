package forecast

import (
	"fmt"
	"math"
	"slices"
)

// Skew holds the share of a layer's work that each of its experts has, the hottest first. It is the same
// for all layers.
type Skew struct {
	Name  string
	share []float64 // falling, with the sum 1
}

// Uniform returns the skew of experts that all have the same work.
func Uniform(experts int) Skew {
	s := Skew{"uniform", make([]float64, max(1, experts))}
	for i := range s.share {
		s.share[i] = 1 / float64(len(s.share))
	}
	return s
}

// Typical of trained routers: the hottest quarter of a layer's experts has half of the work (47 to 78 %
// in the layers of krater-tiny).
const (
	hotExperts = 0.25
	hotWork    = 0.50
)

// Zipf returns a skew in which the work of the nth hottest expert falls as a power of n. The power is such
// that the hottest quarter has half of the work. The same experts are hot in every prompt.
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

// Counted returns the skew of counts [layer][expert], which say how often each expert was chosen. The
// share of the nth hottest expert is the mean over the layers. Layers without counts are left out; if
// there is no count at all, the skew is uniform.
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

// Hot returns the share of the work that the n hottest experts have.
func (s Skew) Hot(n int) float64 {
	sum := 0.0
	for _, x := range s.share[:min(max(0, n), len(s.share))] {
		sum += x
	}
	return min(1, sum)
}

// picks returns the probability with which a row takes each expert if it takes k of them. Probabilities
// are limited to 1, and the excess goes to the other experts in proportion.
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

// active returns the expected number of experts that at least one of m rows takes.
func active(picks []float64, m float64) (n float64) {
	for _, q := range picks {
		n += chosen(q, m)
	}
	return n
}

// chosen returns the probability that at least one of m rows takes an expert which each takes with
// probability q.
func chosen(q, m float64) float64 {
	if q >= 1 {
		return 1
	}
	return -math.Expm1(m * math.Log1p(-q)) // 1 - (1-q)^m
}

// taken returns the expected number of choices of m rows. An expert that several rows take counts once
// per row.
func taken(picks []float64, m float64) (n float64) {
	for _, q := range picks {
		n += m * q
	}
	return n
}

// The following functions return the share of the experts needed by a step of m rows that is found in
// places for some of the experts. The expert that was used longest ago is replaced first. They use
// Che's approximation (Che, Tung and Wang, 2002): an expert stays for the number of steps in which
// others fill the places. Steps are assumed to be independent of each other.

// ownHits returns the hits in places that one layer has for itself. Experts that are found are used
// before others are loaded, so even places too few for a step keep some experts of the step before.
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
