package suspect

import (
	"math"
	"runtime"
	"sync"
)

// mul is x [t, in] times w [out, in] transposed: [t, out]. nil where the sizes do not fit.
func mul(x, w []float32, t int) []float32 {
	if t == 0 || len(x)%t != 0 || len(x) == 0 || len(w)%(len(x)/t) != 0 {
		return nil
	}
	in := len(x) / t
	out := len(w) / in
	y := make([]float32, t*out)
	parts := min(runtime.GOMAXPROCS(0), out)
	var wg sync.WaitGroup
	for p := range parts {
		wg.Go(func() {
			for o := out * p / parts; o < out*(p+1)/parts; o++ {
				row := w[o*in : (o+1)*in]
				for i := range t {
					y[i*out+o] = float32(dot(x[i*in:(i+1)*in], row))
				}
			}
		})
	}
	wg.Wait()
	return y
}

// dot is the sum of a[i]*b[i] over a, in float64.
func dot(a, b []float32) float64 {
	var sum float64
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum
}

// transposed reads w as [in, out] and gives it as [out, in].
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
func columns(x []float32, t int, from []int) []float32 {
	if len(x) != t*len(from) {
		return nil
	}
	y := make([]float32, len(x))
	for r := range t {
		row := x[r*len(from):]
		for i, c := range from {
			y[r*len(from)+i] = row[c]
		}
	}
	return y
}

// inverse is the permutation that undoes p.
func inverse(p []int) []int {
	q := make([]int, len(p))
	for i, at := range p {
		q[at] = i
	}
	return q
}

// sum is a + b, b repeated for every row.
func sum(a, b []float32) []float32 {
	if len(b) == 0 || len(a)%len(b) != 0 {
		return nil
	}
	y := make([]float32, len(a))
	for i, v := range a {
		y[i] = v + b[i%len(b)]
	}
	return y
}

// scaled is x times a number.
func scaled(x []float32, by float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(float64(v) * by)
	}
	return y
}

// rms is RMSNorm of the rows of x with weight w [width].
func rms(x, w []float32, eps float64) []float32 {
	width := len(w)
	if width == 0 || len(x)%width != 0 {
		return nil
	}
	y := make([]float32, len(x))
	for at := 0; at < len(x); at += width {
		row := x[at : at+width]
		by := 1 / math.Sqrt(dot(row, row)/float64(width)+eps)
		for i, v := range row {
			y[at+i] = float32(float64(v) * by * float64(w[i]))
		}
	}
	return y
}

// softmax works in place.
func softmax(x []float64) {
	top, total := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for i, v := range x {
		x[i] = math.Exp(v - top)
		total += x[i]
	}
	for i := range x {
		x[i] /= total
	}
}
