package oracle

import (
	"math"

	"krater/kernels/device"
)

// Route gives every expert's weight [E] for one token; those not chosen have 0.
// DeepSeek-V2: softmax scores, optionally only within the best groups (a group
// counts as its best expert).
func Route(logits []float64, p device.Router) []float64 {
	scores := append([]float64(nil), logits...)
	softmax(scores)
	open := append([]float64(nil), scores...)
	if p.Groups > 1 {
		size := len(open) / p.Groups
		for g := range p.Groups {
			if rank(g, p.Groups, func(i int) float64 { return best(scores[i*size : (i+1)*size]) }) >= p.TopGroups {
				for e := g * size; e < (g+1)*size; e++ {
					open[e] = math.Inf(-1)
				}
			}
		}
	}
	out := make([]float64, len(scores))
	var sum float64
	for e := range scores {
		if rank(e, len(open), func(i int) float64 { return open[i] }) < p.TopK {
			out[e] = scores[e]
			sum += scores[e]
		}
	}
	for e := range out {
		if p.Normalize {
			out[e] /= sum
		}
		out[e] *= float64(p.Scale)
	}
	return out
}

// rank is how many of n values come before value i: larger ones, and equal ones
// of lower index.
func rank(i, n int, value func(int) float64) int {
	before := 0
	for j := range n {
		if value(j) > value(i) || value(j) == value(i) && j < i {
			before++
		}
	}
	return before
}

func best(x []float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}
	return top
}
