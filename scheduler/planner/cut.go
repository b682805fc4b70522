package planner

import (
	"fmt"
	"math"
)

// Stage is a rank among which the layers of a model are divided.
type Stage struct {
	Room   int64   // bytes of layers that it can hold
	Rate   float64 // bytes of layers that it passes in a second; 0: as many as the others whose rate is not known
	Before float64 // seconds of a step that it needs besides its layers, such as for the head
}

// Cut divides layers, whose sizes in bytes are given, among ranks in their order, at least one layer for each. The
// slowest rank bounds how many steps a pipeline takes in a second, so its time is as short as possible; among equal
// divisions earlier ranks have more layers. An error says how much does not fit.
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

// unknownRate is the mean of the known rates, by which the others count.
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
