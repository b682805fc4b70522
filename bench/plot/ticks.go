package plot

import (
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
)

// ticks are the marks of an axis of numbers. An axis has labelsLeast labels or more, whatever its
// range is.
type ticks struct {
	log bool
	at  []float64 // positions of labels that have room; nil: at round numbers
}

// Bounds of an axis.
const (
	labelsLeast = 3
	labelsMost  = 12
	apartLeast  = 0.04 // of the axis, between two labels
)

// Ticks implements plot.Ticker.
func (t ticks) Ticks(from, to float64) []plot.Tick {
	if t.log {
		return logTicks(from, to)
	}
	var at []plot.Tick
	last := math.Inf(-1)
	for _, x := range slices.Sorted(slices.Values(t.at)) {
		if x >= from && x <= to && x-last >= apartLeast*(to-from) {
			at, last = append(at, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'f', -1, 64)}), x
		}
	}
	if len(at) >= labelsLeast && len(at) <= labelsMost {
		return at
	}
	return roundTicks(from, to, labelsLeast+1)
}

// roundTicks are ticks at multiples of the widest step of 1, 2 or 5 times a power of ten of which
// least or more are in a range.
func roundTicks(from, to float64, least int) []plot.Tick {
	for power := int(math.Ceil(math.Log10(to - from))); ; power-- {
		for _, digit := range []float64{5, 2, 1} {
			step := scaled(digit, power)
			first, last := math.Ceil(from/step), math.Floor(to/step)
			if last-first+1 < float64(least) {
				continue
			}
			var list []plot.Tick
			for n := first; n <= last; n++ {
				v := scaled(n*digit, power)
				list = append(list, plot.Tick{Value: v, Label: number(v, max(0, -power))})
			}
			return list
		}
	}
}

// scaled is v times a power of ten, rounded once: 3 and -1 give 0.3.
func scaled(v float64, power int) float64 {
	if power < 0 {
		return v / math.Pow10(-power)
	}
	return v * math.Pow10(power)
}

// number formats v with the given decimals, or with an exponent if it is very large or small.
func number(v float64, decimals int) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) >= 1e9 || decimals > 6:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// logTicks are ticks of a logarithmic axis at all digits of all powers of ten. Labels have the
// powers, or 1, 2 and 5 times them, or all digits; a small part of a decade has multiples of a
// step.
func logTicks(from, to float64) []plot.Tick {
	low, high := int(math.Floor(math.Log10(from))), int(math.Ceil(math.Log10(to)))
	every := 1 + (high-low)/labelsMost // of the powers
	for _, digits := range [][]int{{1}, {1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		var list []plot.Tick
		labels := 0
		for power := low; power <= high; power++ {
			for digit := 1; digit < 10; digit++ {
				t := plot.Tick{Value: scaled(float64(digit), power)}
				if t.Value < from || t.Value > to {
					continue
				}
				if slices.Contains(digits, digit) && (power-low)%every == 0 {
					t.Label = strconv.FormatFloat(t.Value, 'g', -1, 64)
					labels++
				}
				list = append(list, t)
			}
		}
		if labels >= labelsLeast {
			return list
		}
	}
	return roundTicks(from, to, labelsLeast)
}
