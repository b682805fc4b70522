package planner

import (
	"fmt"
	"math"
)

// Stage is one of the ranks that share the layers of a model.
type Stage struct {
	Room   int64   // bytes of layers that it can hold
	Rate   float64 // bytes of layers that it reads per second; 0: unknown, the mean of the known rates counts
	Before float64 // seconds per step besides its layers, such as for the head
}

// Cut divides layers among ranks, in order, at least one layer for each. layers has the size of each
// layer in bytes; the result has the number of layers of each rank. The slowest rank limits the steps
// per second of a pipeline, so Cut makes its time as short as possible. Among equal divisions earlier
// ranks get more layers. The error says how much does not fit.
func Cut(layers []int64, ranks []Stage) ([]int, error) {
	n := len(layers)
	if len(ranks) < 1 || len(ranks) > n {
		return nil, fmt.Errorf("%d ranks for %d layers", len(ranks), n)
	}
	sum := make([]int64, n+1) // of the layers before
	for i, bytes := range layers {
		sum[i+1] = Add(sum[i], bytes)
	}
	// best[r][i] is the time of the slowest of the first r ranks with the first i layers, from[r][i] where the last of them begins.
	best, from := make([][]float64, len(ranks)+1), make([][]int, len(ranks)+1)
	for r := range best {
		best[r], from[r] = make([]float64, n+1), make([]int, n+1)
		for i := range best[r] {
			best[r][i] = math.Inf(1)
		}
	}
	best[0][0] = 0
	for r, rank := range ranks {
		rate := rank.Rate
		if rate <= 0 {
			rate = unknownRate(ranks)
		}
		for i := r + 1; i <= n-(len(ranks)-1-r); i++ {
			for k := r; k < i; k++ {
				bytes := sum[i] - sum[k]
				if bytes > rank.Room {
					continue
				}
				if t := max(best[r][k], rank.Before+float64(bytes)/rate); t <= best[r+1][i] && !math.IsInf(t, 1) {
					best[r+1][i], from[r+1][i] = t, k
				}
			}
		}
	}
	if math.IsInf(best[len(ranks)][n], 1) {
		room := int64(0)
		for _, rank := range ranks {
			room = Add(room, max(0, rank.Room))
		}
		return nil, fmt.Errorf("%d layers of %s in all do not fit %d ranks with room for %s", n, Size(sum[n]), len(ranks), Size(room))
	}
	sizes := make([]int, len(ranks))
	for r, i := len(ranks), n; r > 0; r-- {
		sizes[r-1] = i - from[r][i]
		i = from[r][i]
	}
	return sizes, nil
}

// unknownRate returns the mean of the known rates, 1 if there is none.
func unknownRate(ranks []Stage) float64 {
	sum, n := 0.0, 0
	for _, r := range ranks {
		if r.Rate > 0 {
			sum += r.Rate
			n++
		}
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}
