package serve

import (
	"math"
	"slices"

	"krater/bench/stat"
)

// Trend is how fast a quantity grows, robust against outliers.
type Trend struct {
	// Slope is the median of the slopes between all pairs of points (Theil and Sen), in units an
	// hour; Low and High hold the true one with 95 % confidence (Sen, 1968).
	Slope float64 `json:"slope_per_h"`
	Low   float64 `json:"low_per_h"`
	High  float64 `json:"high_per_h"`
	// Start and Hours are the fitted line's value at the beginning and its length.
	Start  float64 `json:"start"`
	Hours  float64 `json:"hours"`
	Points int     `json:"points"` // 0: too few to tell
}

// Bounds of a fit. Samples are joined into as many medians as trendBlocks, so that a collector's
// teeth are in the noise of a point rather than in the slope, and neighbours depend less on one
// another than the interval supposes.
const (
	trendBlocks = 60
	trendLeast  = 8
)

// fit finds the trend of values at times in seconds, which rise.
func fit(at, v []float64) Trend {
	x, y := blocks(at, v)
	n := len(x)
	if n < trendLeast {
		return Trend{}
	}
	var slopes []float64
	for i := range n {
		for j := i + 1; j < n; j++ {
			if x[j] > x[i] {
				slopes = append(slopes, 3600*(y[j]-y[i])/(x[j]-x[i]))
			}
		}
	}
	slices.Sort(slopes)
	m := len(slopes)
	// Kendall's statistic has this deviation without a trend; the interval's ends are this many
	// places from the middle.
	half := 1.96 * math.Sqrt(float64(n*(n-1)*(2*n+5))/18) / 2
	rank := func(f float64) float64 { return slopes[max(0, min(m-1, int(math.Round(f))))] }
	t := Trend{
		Slope: middleOf(slopes), Low: rank(float64(m)/2 - half - 1), High: rank(float64(m)/2 + half),
		Hours: (at[len(at)-1] - at[0]) / 3600, Points: n,
	}
	rest := make([]float64, n)
	for i := range x {
		rest[i] = y[i] - t.Slope*(x[i]-at[0])/3600
	}
	slices.Sort(rest)
	t.Start = middleOf(rest)
	return t
}

// middleOf returns the median of sorted values, between the two middle ones.
func middleOf(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// blocks joins neighbours into medians, trendBlocks at most.
func blocks(at, v []float64) (x, y []float64) {
	each := (len(at) + trendBlocks - 1) / trendBlocks
	for i := 0; each > 0 && i+each <= len(at); i += each {
		x = append(x, stat.Sample(at[i:i+each]).Median())
		y = append(y, stat.Sample(v[i:i+each]).Median())
	}
	return x, y
}

// Growth returns how much the line rises from its beginning to its end, as little as the interval
// allows.
func (t Trend) Growth() float64 { return t.Low * t.Hours }
