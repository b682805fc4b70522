package sample

import (
	"math"
	"slices"
)

// oracle is the whole of a choice written for reading, in float64, with sorts and math.Exp: what
// the package has to agree with.
type oracle struct {
	p      Params
	prompt []int32
	answer []int32
}

// row returns the logits after bias, mask and penalties.
func (o *oracle) row(logits []float32) []float64 {
	x := make([]float64, len(logits))
	for i, v := range logits {
		x[i] = float64(v)
	}
	for id, b := range o.p.LogitBias {
		x[id] = float64(logits[id] + b)
	}
	if len(o.answer) < o.p.MinTokens {
		for _, id := range o.p.StopIDs {
			x[id] = math.Inf(-1)
		}
		for _, id := range o.p.EOS {
			if !o.p.IgnoreEOS {
				x[id] = math.Inf(-1)
			}
		}
	}
	for id := range x {
		inPrompt, times := slices.Contains(o.prompt, int32(id)), 0
		for _, a := range o.answer {
			if a == int32(id) {
				times++
			}
		}
		if inPrompt || times > 0 {
			if x[id] > 0 {
				x[id] /= o.p.RepetitionPenalty
			} else {
				x[id] *= o.p.RepetitionPenalty
			}
		}
		if times > 0 {
			x[id] -= o.p.PresencePenalty + o.p.FrequencyPenalty*float64(times)
		}
	}
	return x
}

// greedy returns the smallest id of the largest.
func greedy(x []float64) int32 {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return int32(best)
}

// distribution returns the probability of every token after all filters.
func (o *oracle) distribution(x []float64) []float64 {
	order := make([]int, len(x))
	top := x[greedy(x)]
	prob := make([]float64, len(x))
	for i := range order {
		order[i] = i
		prob[i] = math.Exp((x[i] - top) / o.p.Temperature)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return a - b
	})
	if o.p.TopK > 0 && o.p.TopK < len(order) {
		order = order[:o.p.TopK]
	}
	sum := func() (s float64) {
		for _, i := range order {
			s += prob[i]
		}
		return s
	}
	if o.p.TopP < 1 {
		need, got, n := o.p.TopP*sum(), 0.0, 0
		for n < len(order) && got < need {
			got += prob[order[n]]
			n++
		}
		order = order[:n]
	}
	for i, id := range order {
		if prob[id] < o.p.MinP*prob[order[0]] {
			order = order[:i]
			break
		}
	}
	total := sum()
	out := make([]float64, len(x))
	for _, id := range order {
		out[id] = prob[id] / total
	}
	return out
}

// pickAt returns the token at point u of the cumulative distribution by rising id, and how near u
// is to the end of its range.
func pickAt(dist []float64, u float64) (id int32, margin float64) {
	sum := 0.0
	for i, p := range dist {
		if p == 0 {
			continue
		}
		from := sum
		sum += p
		id = int32(i)
		if sum > u {
			return id, min(u-from, sum-u)
		}
	}
	return id, 0
}

// logSoftmax of the raw row.
func logSoftmax(logits []float32) []float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	out := make([]float64, len(logits))
	for i, x := range logits {
		out[i] = float64(x) - top - math.Log(sum)
	}
	return out
}
