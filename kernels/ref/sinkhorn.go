package ref

import (
	"math"

	"krater/kernels/device"
)

// MixWeights turns the products in out [T, cols] into the weights of device.StreamMix. x [T, n*h] are the streams, base [cols]
// and scale [3] or, where there are only weights to read, [1].
func MixWeights(out, x, base, scale []float32, p device.StreamMix) {
	n, cols := p.Streams, len(base)
	width := len(x) / (len(out) / cols)
	for t := range len(out) / cols {
		row, streams := out[t*cols:][:cols], x[t*width:][:width]
		by := 1 / math.Sqrt(dot(streams, streams)/float64(width)+float64(p.NormEps))
		z := make([]float64, cols)
		for i, v := range row {
			z[i] = float64(v)*by*float64(scale[min(i/n, 2)]) + float64(base[i])
		}
		for i := range n {
			row[i] = float32(sigmoid(z[i]) + float64(p.Eps))
		}
		if cols == n {
			continue
		}
		for i := n; i < 2*n; i++ {
			row[i] = float32(2 * sigmoid(z[i]))
		}
		mix := z[2*n:]
		for j := range n { // softmax by rows
			sum := 0.0
			for k := range n {
				mix[j*n+k] = math.Exp(mix[j*n+k])
				sum += mix[j*n+k]
			}
			for k := range n {
				mix[j*n+k] = mix[j*n+k]/sum + float64(p.Eps)
			}
		}
		normalise(mix, n, 1, n, float64(p.Eps))
		for range p.Iterations - 1 {
			normalise(mix, n, n, 1, float64(p.Eps))
			normalise(mix, n, 1, n, float64(p.Eps))
		}
		for i, v := range mix {
			row[2*n+i] = float32(v)
		}
	}
}

// normalise divides lines of a matrix [n, n] by their sums plus eps. Lines begin step apart, their values along apart.
func normalise(m []float64, n, step, along int, eps float64) {
	for a := range n {
		sum := eps
		for b := range n {
			sum += m[a*step+b*along]
		}
		for b := range n {
			m[a*step+b*along] /= sum
		}
	}
}

// CollapseWhole is Collapse with weights [T, n], one for each stream; nil: the mean.
func CollapseWhole(out, x, weights []float32, n, h int) {
	for i := range out {
		sum := 0.0
		for s := range n {
			w := 1 / float64(n)
			if weights != nil {
				w = float64(weights[i/h*n+s])
			}
			sum += w * float64(x[i/h*n*h+s*h+i%h])
		}
		out[i] = float32(sum)
	}
}

// SpreadMixed is Spread with weights [T, n+n*n]: base [T, n*h] is mixed by the matrix behind the first n. out may not be base.
func SpreadMixed(out, x, weights, base []float32, n, h int) {
	for i := range out {
		t, k := i/(n*h), i/h%n
		w := weights[t*(n+n*n):][:n+n*n]
		v := float64(w[k]) * float64(x[t*h+i%h])
		for j := range n {
			v += float64(w[n+j*n+k]) * float64(base[(t*n+j)*h+i%h])
		}
		out[i] = float32(v)
	}
}
