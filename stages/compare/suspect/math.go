package suspect

import "math"

// transposed reads w as [in, out] and returns it as [out, in].
func transposed(w []float32, out, in int) []float32 {
	y := make([]float32, len(w))
	for o := range out {
		for i := range in {
			y[o*in+i] = w[i*out+o]
		}
	}
	return y
}

// columns takes column from[i] of x [t, len(from)] as column i.
func columns(x []float64, t int, from []int) []float64 {
	if len(x) != t*len(from) {
		return nil
	}
	y := make([]float64, len(x))
	for r := range t {
		row := x[r*len(from):]
		for i, c := range from {
			y[r*len(from)+i] = row[c]
		}
	}
	return y
}

// inverse returns the permutation that undoes p.
func inverse(p []int) []int {
	q := make([]int, len(p))
	for i, at := range p {
		q[at] = i
	}
	return q
}

// scaled is x times a number.
func scaled(x []float64, by float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * by
	}
	return y
}

// times is w times a number.
func times(w []float32, by float64) []float32 {
	y := make([]float32, len(w))
	for i, v := range w {
		y[i] = float32(float64(v) * by)
	}
	return y
}

// centred takes the mean of each row of width values away.
func centred(x []float64, width int) []float64 {
	y := append([]float64(nil), x...)
	for at := 0; at < len(y); at += width {
		var mean float64
		for _, v := range y[at : at+width] {
			mean += v / float64(width)
		}
		for i := range width {
			y[at+i] -= mean
		}
	}
	return y
}

// distance is |a - b| / |b| as vectors; infinite where they cannot be compared.
func distance(a, b []float64) float64 {
	if len(a) != len(b) || len(b) == 0 {
		return math.Inf(1)
	}
	var diff, norm float64
	for i := range b {
		d := a[i] - b[i]
		diff += d * d
		norm += b[i] * b[i]
	}
	switch d := math.Sqrt(diff / norm); {
	case diff == 0:
		return 0
	case math.IsNaN(d):
		return math.Inf(1)
	default:
		return d
	}
}
