package ref

import (
	"math"
	"sort"

	"krater/kernels/device"
)

// RouteTopK chooses TopK experts for every row of logits [T, Experts]. bias is nil or [Experts]; it
// takes part in choosing only. factors is nil or [Experts]; they multiply weights. Sources: DeepSeek-V2's MoEGate (greedy, group_limited_greedy) and
// DeepSeek-V3's (noaux_tc).
func RouteTopK(ids []int32, weights, logits, bias, factors []float32, p device.Router) {
	for t := 0; t*p.Experts < len(logits); t++ {
		scores := Scores(logits[t*p.Experts:(t+1)*p.Experts], p.Scoring)
		choice := append([]float64(nil), scores...)
		for i := range bias {
			choice[i] += float64(bias[i])
		}
		if p.Groups > 1 {
			maskGroups(choice, p)
		}
		chosen := topIndices(choice, p.TopK)
		var sum float64
		for _, e := range chosen {
			sum += scores[e]
		}
		for i, f := range factors {
			scores[i] *= float64(f)
		}
		// Falling weight, then rising id.
		sort.Slice(chosen, func(a, b int) bool {
			if scores[chosen[a]] != scores[chosen[b]] {
				return scores[chosen[a]] > scores[chosen[b]]
			}
			return chosen[a] < chosen[b]
		})
		for k, e := range chosen {
			w := scores[e]
			if p.Normalize {
				w /= sum + 1e-20
			}
			ids[t*p.TopK+k] = int32(e)
			weights[t*p.TopK+k] = float32(w * float64(p.Scale))
		}
	}
}

// Scores turns one row of logits into probabilities.
func Scores(logits []float32, s device.Scoring) []float64 {
	scores := make([]float64, len(logits))
	if s == device.ScoreSigmoid {
		for i, v := range logits {
			scores[i] = 1 / (1 + math.Exp(-float64(v)))
		}
		return scores
	}
	if s == device.ScoreSqrtSoftplus {
		for i, v := range logits {
			scores[i] = math.Sqrt(math.Log1p(math.Exp(float64(v))))
		}
		return scores
	}
	top, sum := math.Inf(-1), 0.0
	for _, v := range logits {
		top = math.Max(top, float64(v))
	}
	for i, v := range logits {
		scores[i] = math.Exp(float64(v) - top)
		sum += scores[i]
	}
	for i := range scores {
		scores[i] /= sum
	}
	return scores
}

// maskGroups sets the experts of every group but the TopGroups best to minus infinity.
func maskGroups(choice []float64, p device.Router) {
	size := p.Experts / p.Groups
	rates := make([]float64, p.Groups)
	for g := range rates {
		sorted := append([]float64(nil), choice[g*size:(g+1)*size]...)
		sort.Sort(sort.Reverse(sort.Float64Slice(sorted)))
		rates[g] = sorted[0]
		if p.GroupScore == device.GroupTop2Sum && size > 1 {
			rates[g] += sorted[1]
		}
	}
	keep := make([]bool, p.Groups)
	for _, g := range topIndices(rates, p.TopGroups) {
		keep[g] = true
	}
	for i := range choice {
		if !keep[i/size] {
			choice[i] = math.Inf(-1)
		}
	}
}

// topIndices returns the indices of the n largest values; equal values by rising index.
func topIndices(values []float64, n int) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return values[order[a]] > values[order[b]] })
	return order[:n]
}
