package heat

import (
	"cmp"
	"math"
	"slices"
)

// Curve gives the share of the work that the hottest experts do: Curve[n] is the share of
// all routed rows, from 0 to 1, that goes to the n hottest. Without counts all experts
// count as equally hot.
type Curve []float64

// Curve returns the curve of one layer [experts+1], nil if it has no experts.
func (m *Map) Curve(layer int32) Curve {
	i := m.index(layer)
	if i < 0 {
		return nil
	}
	rates := make([]float64, m.shape.Experts)
	for e, n := range m.row(i) {
		rates[e] = float64(n)
	}
	return curveOf(rates)
}

// Whole returns the curve of all experts of the model, the hottest of any layer first
// [layers*experts+1]; layers count alike.
func (m *Map) Whole() Curve {
	rates := make([]float64, 0, len(m.counts))
	for i := range m.shape.Layers {
		var sum uint64
		for _, n := range m.row(i) {
			sum += n
		}
		for _, n := range m.row(i) {
			if sum == 0 {
				rates = append(rates, 1/float64(m.shape.Experts))
				continue
			}
			rates = append(rates, float64(n)/float64(sum))
		}
	}
	return curveOf(rates)
}

// curveOf sorts rates, the largest first, and adds them up.
func curveOf(rates []float64) Curve {
	slices.SortFunc(rates, func(a, b float64) int { return cmp.Compare(b, a) })
	var sum float64
	for _, r := range rates {
		sum += r
	}
	c := make(Curve, len(rates)+1)
	var at float64
	for n, r := range rates {
		at += r
		if sum == 0 {
			c[n+1] = float64(n+1) / float64(len(rates))
			continue
		}
		c[n+1] = at / sum
	}
	c[len(rates)] = 1
	return c
}

// Share returns the share (0 to 1) of the work that goes to the hottest part (0 to 1) of the experts.
// It interpolates between whole experts.
func (c Curve) Share(part float64) float64 {
	at := min(max(part, 0), 1) * float64(len(c)-1)
	n := int(at)
	if n == len(c)-1 {
		return 1
	}
	return c[n] + (at-float64(n))*(c[n+1]-c[n])
}

// Entropy returns the entropy of the choice of an expert in bits, from 0 (always the
// same expert) to log2 of their number (even).
func (c Curve) Entropy() float64 {
	var h float64
	for n := 1; n < len(c); n++ {
		if p := c[n] - c[n-1]; p > 0 {
			h -= p * math.Log2(p)
		}
	}
	return h
}
