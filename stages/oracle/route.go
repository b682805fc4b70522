package oracle

import (
	"cmp"
	"math"
	"slices"

	"krater/kernels/device"
)

// Route returns the experts that a token's logits choose and their weights, by falling weight, then
// rising number. DeepSeek-V2: softmax scores, optionally only within the best groups (a group
// counts as its best expert).
func Route(logits []float64, p device.Router) (ids []int, weights []float64) {
	scores := slices.Clone(logits)
	softmax(scores)
	open := slices.Clone(scores)
	if p.Groups > 1 {
		size, best := len(open)/p.Groups, make([]float64, p.Groups)
		for g := range best {
			best[g] = slices.Max(scores[g*size : (g+1)*size])
		}
		for _, g := range falling(best)[p.TopGroups:] {
			for e := g * size; e < (g+1)*size; e++ {
				open[e] = math.Inf(-1)
			}
		}
	}
	ids = falling(open)[:p.TopK]
	var sum float64
	for _, e := range ids {
		weights = append(weights, scores[e])
		sum += scores[e]
	}
	for i := range weights {
		if p.Normalize {
			weights[i] /= sum
		}
		weights[i] *= float64(p.Scale)
	}
	return ids, weights
}

// falling lists the indices of the largest value first; equal values by rising index.
func falling(values []float64) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	return order
}
