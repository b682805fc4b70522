package serve

import (
	"math"
)

// The buckets of a Histogram: each is a factor wider than the previous one, from a microsecond to a
// day.
const (
	histLeast  = 1e-6
	histFactor = 1.005
	histPlaces = 5050
)

// Histogram counts values in a fixed number of buckets: a load of an hour has millions of gaps
// between tokens. Percentiles are accurate to half of histFactor-1 (0.25 %); minimum, maximum and
// sum are exact. Values are seconds.
type Histogram struct {
	N        int
	Sum      float64
	Min, Max float64
	places   []int32
}

// Add counts v n times; negative values count as zero.
func (h *Histogram) Add(v float64, n int) {
	if n <= 0 {
		return
	}
	if v = max(v, 0); h.places == nil {
		h.places = make([]int32, histPlaces)
	}
	if h.N == 0 {
		h.Min, h.Max = v, v
	}
	h.N, h.Sum = h.N+n, h.Sum+v*float64(n)
	h.Min, h.Max = min(h.Min, v), max(h.Max, v)
	h.places[place(v)] += int32(n)
}

// place returns the bucket of v.
func place(v float64) int {
	if v <= histLeast {
		return 0
	}
	return min(histPlaces-1, 1+int(math.Log(v/histLeast)/math.Log(histFactor)))
}

// middle returns the value at the middle of a bucket.
func middle(i int) float64 {
	if i == 0 {
		return histLeast
	}
	return histLeast * math.Pow(histFactor, float64(i)-0.5)
}

// Percentile returns the value that a share q does not exceed, by rank; 0 of nothing.
func (h *Histogram) Percentile(q float64) float64 {
	if h.N == 0 {
		return 0
	}
	rank := min(h.N, max(1, int(math.Ceil(q*float64(h.N)))))
	if rank == h.N {
		return h.Max
	}
	seen := 0
	for i, n := range h.places {
		if seen += int(n); seen >= rank {
			return min(h.Max, max(h.Min, middle(i)))
		}
	}
	return h.Max
}

// Summary is the summary of times, in milliseconds.
type Summary struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean_ms"`
	P50  float64 `json:"p50_ms"`
	P90  float64 `json:"p90_ms"`
	P95  float64 `json:"p95_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
}

// Summary sums h up.
func (h *Histogram) Summary() Summary {
	if h.N == 0 {
		return Summary{}
	}
	ms := func(q float64) float64 { return 1e3 * h.Percentile(q) }
	return Summary{h.N, 1e3 * h.Sum / float64(h.N), ms(0.5), ms(0.9), ms(0.95), ms(0.99), 1e3 * h.Max}
}

// cdf returns points of the cumulative distribution: milliseconds and percent.
func (h *Histogram) cdf() (x, y []float64) {
	const points = 200
	for i := range points + 1 {
		q := float64(i) / points
		x, y = append(x, 1e3*h.Percentile(q)), append(y, 100*q)
	}
	return x, y
}
