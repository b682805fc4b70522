package oracle

import (
	"strings"
)

// mixed are the operators around blocks whose streams are mixed with each other (device.StreamMix).
func (l *Layer) mixed(op string) ([]float64, bool) {
	n, h := l.Streams.Count, l.Config.Hidden
	norm := func(x []float64, role string) []float64 {
		return RMSNorm(x, l.Weight(l.Tensor(role), h), float64(l.Config.NormEps))
	}
	prefix, entered := "attn_", l.In
	if strings.HasPrefix(op, "mlp_") {
		prefix, entered = "mlp_", l.of("streams_mid")
	}
	weights := func(from, to int) []float64 {
		return part(l.streamWeights(prefix, entered(), Balance{Iterations: l.Streams.Iterations}), n+n+n*n, from, to-from)
	}
	switch op {
	case "attn_hc_in", "mlp_hc_in":
		return l.summed(entered(), weights(0, n)), true
	case "attn_hc_post", "mlp_hc_post":
		return weights(n, 2*n), true
	case "attn_hc_comb", "mlp_hc_comb":
		return weights(2*n, 2*n+n*n), true
	case "input_norm":
		return norm(l.Get("attn_hc_in"), op), true
	case "post_norm":
		return norm(l.Get("mlp_hc_in"), op), true
	case "final_norm":
		if l.Streams.MeanEnd {
			return norm(l.summed(l.In(), nil), "norm"), true
		}
		return norm(l.summed(l.In(), l.streamWeights("end_", l.In(), Balance{})), "norm"), true
	case "streams_mid":
		return l.Mingled(op, false), true
	case "layer_out":
		return l.Mingled(op, false), true
	}
	return nil, false
}

// summed returns the sum of the streams x by weights [T, n]; nil: their mean.
func (l *Layer) summed(x, weights []float64) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	if len(x) != l.T*n*h {
		return nil
	}
	out := make([]float64, l.T*h)
	for i, v := range x {
		w := 1 / float64(n)
		if weights != nil {
			w = weights[i/h]
		}
		out[i/(n*h)*h+i%h] += w * v
	}
	return out
}

// Mingled returns the streams behind the first block of the layer (op streams_mid) or the second (layer_out): mixed, plus the block's output. transposed: by
// the transposed matrix.
func (l *Layer) Mingled(op string, transposed bool) []float64 {
	x, prefix, block := l.In, "attn_", "mixer_out"
	if op == "layer_out" {
		x, prefix, block = l.of("streams_mid"), "mlp_", "mlp_out"
	}
	return l.mingled(x(), prefix, block, transposed)
}

func (l *Layer) mingled(x []float64, prefix, block string, transposed bool) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	out, comb := l.spread(l.Get(prefix+"hc_post"), l.Get(block)), l.Get(prefix+"hc_comb")
	if len(comb) != l.T*n*n || len(x) != len(out) {
		return nil
	}
	for i := range out {
		t, to := i/(n*h), i/h%n
		for from := range n {
			at := (t*n+from)*n + to
			if transposed {
				at = (t*n+to)*n + from
			}
			out[i] += comb[at] * x[(t*n+from)*h+i%h]
		}
	}
	return out
}

// Balance says how the rows and columns of the matrix that mixes streams are made to sum to one, nearly.
type Balance struct {
	Iterations int
	RowsFirst  bool // the first division is by the sums of rows, not of columns
}

// MixMatrix returns the matrix [T, n*n] that mixes the streams before a block, whose prefix is attn_ or mlp_.
func (l *Layer) MixMatrix(prefix string, b Balance) []float64 {
	n, x := l.Streams.Count, l.In
	if prefix == "mlp_" {
		x = l.of("streams_mid")
	}
	return part(l.streamWeights(prefix, x(), b), n+n+n*n, 2*n, n*n)
}

// streamWeights returns the weights for the streams x: those of reading, before the head no more; those of writing; the matrix.
func (l *Layer) streamWeights(prefix string, x []float64, b Balance) []float64 {
	n, eps := l.Streams.Count, float64(l.Streams.Eps)
	width := n * l.Config.Hidden
	ones := make([]float32, width)
	for i := range ones {
		ones[i] = 1
	}
	z := Mul(RMSNorm(x, ones, float64(l.Config.NormEps)), l.Weight(l.Tensor(prefix+"hc_fn"), 0), l.T)
	base, scale := l.Weight(l.Tensor(prefix+"hc_base"), 0), l.Weight(l.Tensor(prefix+"hc_scale"), 0)
	if len(z) == 0 || len(base) != len(z)/l.T || len(scale) < min(3, len(base)/n) {
		return nil
	}
	for at := 0; at < len(z); at += len(base) {
		row := z[at:][:len(base)]
		for i := range row {
			row[i] = row[i]*float64(scale[min(i/n, 2)]) + float64(base[i])
			switch {
			case i < n:
				row[i] = sigmoid(row[i]) + eps
			case i < 2*n:
				row[i] = 2 * sigmoid(row[i])
			}
		}
		if len(row) > n {
			sinkhorn(row[2*n:], n, b, eps)
		}
	}
	return z
}

// sinkhorn makes rows and columns of a matrix [n, n] of logits sum to one, nearly.
func sinkhorn(m []float64, n int, b Balance, eps float64) {
	for j := range n {
		softmax(m[j*n:][:n])
	}
	for i := range m {
		m[i] += eps
	}
	over := func(sum func(i int) int) {
		sums := make([]float64, n)
		for i, v := range m {
			sums[sum(i)] += v
		}
		for i := range m {
			m[i] /= sums[sum(i)] + eps
		}
	}
	rows, columns := func(i int) int { return i / n }, func(i int) int { return i % n }
	if b.RowsFirst {
		over(rows)
	} else {
		over(columns)
	}
	for range b.Iterations - 1 {
		over(rows)
		over(columns)
	}
}
