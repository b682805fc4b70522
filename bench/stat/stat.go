// Package stat is the arithmetic of benchmarks: percentiles of samples, samples kept apart by the
// state the machine was in, and tables for people.
package stat

import (
	"math"
	"slices"
)

// Sample is a series of measurements of one thing.
type Sample []float64

// Summary describes a sample. Percentiles are by rank: P90 is a value that 90 % of the measurements
// do not exceed. For rates, P90 and Max are the quiet moments of a shared machine; for times, P99
// and Max are the bad ones.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summary sums s up; of nothing it is zero.
func (s Sample) Summary() Summary {
	if len(s) == 0 {
		return Summary{}
	}
	v := slices.Sorted(slices.Values(s))
	return Summary{N: len(v), Min: v[0], P50: rank(v, 0.5), P90: rank(v, 0.9), P99: rank(v, 0.99), Max: v[len(v)-1]}
}

// Median returns the middle of s, the lower one of two; 0 of nothing.
func (s Sample) Median() float64 { return s.Percentile(0.5) }

// Percentile returns the smallest value that a share q of the sample does not exceed; 0 of nothing.
func (s Sample) Percentile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return rank(slices.Sorted(slices.Values(s)), q)
}

// rank returns the percentile of sorted values, which are not empty.
func rank(v []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(v)))) - 1
	return v[max(0, min(len(v)-1, i))]
}

// Map returns f of every value.
func (s Sample) Map(f func(float64) float64) Sample {
	out := make(Sample, len(s))
	for i, v := range s {
		out[i] = f(v)
	}
	return out
}

// Blocks replaces every n values by their mean, and drops the rest. This makes times of single
// tokens comparable with a program that measures n together.
func (s Sample) Blocks(n int) Sample {
	var out Sample
	for at := 0; at+n <= len(s); at += n {
		sum := 0.0
		for _, v := range s[at : at+n] {
			sum += v
		}
		out = append(out, sum/float64(n))
	}
	return out
}

// Ratio is a/b, 0 where there is no b: JSON has no infinity.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Round keeps digits significant digits, so that a report does not pretend.
func Round(v float64, digits int) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	unit := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*unit) / unit
}
