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

// hits is the part of the experts that a step of m rows needs which a cache of slots
// holds from steps before, if it drops those not used for longest. It is Che's
// approximation (Che, Tung and Wang, 2002): an expert stays as many steps as it takes
// for the cache to be filled by others. A cache that does not hold the experts of one
// step holds nothing of the step before when it is needed.
func hits(picks []float64, m, slots float64) float64 {
	need := active(picks, m)
	switch {
	case need == 0 || slots >= float64(len(picks)):
		return 1
	case slots <= need:
		return 0
	}
	held := func(steps float64) float64 { return active(picks, m*steps) }
	low, high := 1.0, 2.0
	for held(high) < slots && high < 1e12 {
		low, high = high, 2*high
	}
	for range 60 {
		if mid := (low + high) / 2; held(mid) < slots {
			low = mid
		} else {
			high = mid
		}
	}
	found := 0.0
	for _, q := range picks {
		found += chosen(q, m) * chosen(q, m*low)
	}
	return found / need
}
