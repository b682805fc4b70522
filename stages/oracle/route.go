package oracle

import (
	"cmp"
	"math"
	"slices"

	"krater/kernels/device"
)

// Scores turns the logits of a token into its experts' scores: the softmax of all, the sigmoid of
// each (arXiv 2412.19437, section 2.1.2), or the root of the softplus of each (DeepSeek-V4).
func Scores(logits []float64, kind device.Scoring) []float64 {
	scores := slices.Clone(logits)
	switch kind {
	case device.ScoreSoftmax:
		softmax(scores)
		return scores
	case device.ScoreSqrtSoftplus:
		for i, v := range scores {
			scores[i] = math.Sqrt(math.Log1p(math.Exp(v)))
		}
		return scores
	}
	for i, v := range scores {
		scores[i] = 1 / (1 + math.Exp(-v))
	}
	return scores
}

// Choose returns the TopK experts with the best choice, optionally only within the best groups. A
// group counts as its best expert (DeepSeek-V2), or as the sum of its two best (DeepSeek-V3).
func Choose(choice []float64, p device.Router) []int {
	open := slices.Clone(choice)
	if p.Groups > 1 {
		size, best := len(open)/p.Groups, make([]float64, p.Groups)
		for g := range best {
			group := slices.Sorted(slices.Values(open[g*size : (g+1)*size]))
			best[g] = group[size-1]
			if p.GroupScore == device.GroupTop2Sum && size > 1 {
				best[g] += group[size-2]
			}
		}
		for _, g := range falling(best)[p.TopGroups:] {
			for e := g * size; e < (g+1)*size; e++ {
				open[e] = math.Inf(-1)
			}
		}
	}
	return falling(open)[:p.TopK]
}

// Weigh orders chosen experts by falling weight, then rising number, and returns their weights. factors
// multiply these; nil: nothing.
func Weigh(scores []float64, ids []int, factors []float64, p device.Router) (ordered []int, weights []float64) {
	ordered = slices.Clone(ids)
	var sum float64
	for _, e := range ordered {
		sum += scores[e]
	}
	if factors != nil {
		scores = slices.Clone(scores)
		for e, f := range factors {
			scores[e] *= f
		}
	}
	slices.SortFunc(ordered, func(a, b int) int { return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b)) })
	for _, e := range ordered {
		weights = append(weights, scores[e])
	}
	for i := range weights {
		if p.Normalize {
			weights[i] /= sum
		}
		weights[i] *= float64(p.Scale)
	}
	return ordered, weights
}

// Route returns the experts that a token's logits choose and their weights. correction is added to
// the scores for the choice alone; nil: nothing. factors: see Weigh.
func Route(logits, correction, factors []float64, p device.Router) (ids []int, weights []float64) {
	scores := Scores(logits, p.Scoring)
	choice := scores
	if correction != nil {
		choice = Sum(scores, correction)
	}
	return Weigh(scores, Choose(choice, p), factors, p)
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
