package oracle

import (
	"math"
	"runtime"
	"sync"

	"krater/stages/model"
)

// Widen is x in float64, nil for nil.
func Widen(x []float32) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// Mul is x [t, in] times w [out, in] transposed: [t, out]. nil where the sizes do not fit.
func Mul(x []float64, w []float32, t int) []float64 {
	if t == 0 || len(x)%t != 0 || len(x) == 0 || len(w)%(len(x)/t) != 0 {
		return nil
	}
	in := len(x) / t
	out := len(w) / in
	y := make([]float64, t*out)
	parts := min(runtime.GOMAXPROCS(0), out)
	var wg sync.WaitGroup
	for p := range parts {
		wg.Go(func() {
			for o := out * p / parts; o < out*(p+1)/parts; o++ {
				for i := range t {
					y[i*out+o] = weigh(x[i*in:(i+1)*in], w[o*in:])
				}
			}
		})
	}
	wg.Wait()
	return y
}

// weigh returns the sum of x[i]*w[i] over x.
//
//go:norace
func weigh(x []float64, w []float32) float64 {
	var sum float64
	for i, v := range x {
		sum += v * float64(w[i])
	}
	return sum
}

// Dot returns the sum of a[i]*b[i] over a.
//
//go:norace
func Dot(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// Sum returns a + b, b repeated for every row.
func Sum[F float32 | float64](a []float64, b []F) []float64 {
	if len(b) == 0 || len(a)%len(b) != 0 {
		return nil
	}
	y := make([]float64, len(a))
	for i, v := range a {
		y[i] = v + float64(b[i%len(b)])
	}
	return y
}

// RMSNorm is x / sqrt(mean(x^2) + eps) * w for every row of x, as long as w.
func RMSNorm(x []float64, w []float32, eps float64) []float64 {
	width := len(w)
	if width == 0 || len(x)%width != 0 {
		return nil
	}
	y := make([]float64, len(x))
	for at := 0; at < len(x); at += width {
		row := x[at : at+width]
		by := 1 / math.Sqrt(Dot(row, row)/float64(width)+eps)
		for i, v := range row {
			y[at+i] = v * by * float64(w[i])
		}
	}
	return y
}

// Silu is x * sigmoid(x).
func Silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softmax works in place. more are scores that only take part in the sum.
func softmax(x []float64, more ...float64) {
	top, total := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for _, v := range more {
		top = max(top, v)
	}
	for _, v := range more {
		total += math.Exp(v - top)
	}
	for i, v := range x {
		x[i] = math.Exp(v - top)
		total += x[i]
	}
	for i := range x {
		x[i] /= total
	}
}

// LayerNorm is (x - mean) / sqrt(variance + eps) * w + b over rows as long as w.
func LayerNorm(x []float64, w, b []float32, eps float64) []float64 {
	width := len(w)
	if width == 0 || len(b) != width || len(x)%width != 0 {
		return nil
	}
	y := make([]float64, len(x))
	for at := 0; at < len(x); at += width {
		var mean, variance float64
		for _, v := range x[at : at+width] {
			mean += v / float64(width)
		}
		for _, v := range x[at : at+width] {
			variance += (v - mean) * (v - mean) / float64(width)
		}
		for i, v := range x[at : at+width] {
			y[at+i] = (v-mean)/math.Sqrt(variance+eps)*float64(w[i]) + float64(b[i])
		}
	}
	return y
}

// Rotate is RoPE (arXiv 2104.09864): each pair of a head of dim values in x [t, heads*dim], as a
// complex number, times e^(i*position*frequency). Values of a head behind the pairs stay as they are.
// position returns the position of a row.
func Rotate(x []float64, t, dim int, rope *model.RopeConfig, position func(row int) float64) []float64 {
	half := len(rope.InvFreq)
	if dim == 0 || t == 0 || len(x)%(t*dim) != 0 || 2*half > dim {
		return nil
	}
	out, per := append([]float64(nil), x...), len(x)/t
	for at := 0; at < len(x); at += dim {
		for i, f := range rope.InvFreq {
			a, b := at+2*i, at+2*i+1
			if !rope.Interleaved {
				a, b = at+i, at+i+half
			}
			sin, cos := math.Sincos(position(at/per) * f)
			out[a] = rope.CosSinScale * (x[a]*cos - x[b]*sin)
			out[b] = rope.CosSinScale * (x[a]*sin + x[b]*cos)
		}
	}
	return out
}

// part is n columns from at on of every width columns of x.
func part[F float32 | float64](x []F, width, at, n int) []F {
	if width == 0 || len(x)%width != 0 {
		return nil
	}
	out := make([]F, 0, len(x)/width*n)
	for ; len(x) > 0; x = x[width:] {
		out = append(out, x[at:at+n]...)
	}
	return out
}
