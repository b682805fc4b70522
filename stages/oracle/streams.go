package oracle

import "math"

// streams are the operators around the blocks of a model with several residual streams (model.Streams).
// input_norm, post_norm and final_norm are the collapsed streams: the input of a block, or of the head.
func (l *Layer) streams(op string) ([]float64, bool) {
	if l.Streams.Mixed() {
		return l.mixed(op)
	}
	switch op {
	case "input_norm":
		return l.Collapse("attn_", l.Entered(), Mix{}), true
	case "post_norm":
		return l.Collapse("mlp_", l.Get("streams_mid"), Mix{}), true
	case "final_norm":
		return l.Collapse("end_", l.In(), Mix{}), true
	case "attn_hc_inject":
		return l.inject("attn_", l.Entered()), true
	case "mlp_hc_inject":
		return l.inject("mlp_", l.Get("streams_mid")), true
	case "streams_mid":
		return Sum(l.Entered(), l.spread(l.Get("attn_hc_inject"), l.Get("mixer_out"))), true
	case "layer_out":
		return Sum(l.Get("streams_mid"), l.spread(l.Get("mlp_hc_inject"), l.Get("mlp_out"))), true
	}
	return nil, false
}

// Mix is how the streams become the input of a block where that is done otherwise than it is defined.
type Mix struct {
	Plain bool // norms multiply by w, not by 1 + w
	Whole bool // all streams are normed as one row
	Sum   bool // the streams are summed, not averaged
	Raw   bool // the weights multiply the streams as they are, not the normed ones
}

// Entered returns the streams that the mixer reads.
func (l *Layer) Entered() []float64 {
	if l.NGrams == nil {
		return l.In()
	}
	return Sum(l.In(), l.Get("ple_out"))
}

// streamNorm norms each stream of x with its part of a weight.
func (l *Layer) streamNorm(role string, x []float64) []float64 {
	return l.normStreams(role, x, l.Config.Hidden, 1)
}

// normStreams norms pieces of x of width values, with a weight to which plus is added.
func (l *Layer) normStreams(role string, x []float64, width int, plus float32) []float64 {
	all := l.Streams.Width(l.Config.Hidden)
	w, out := l.Weight(l.Tensor(role), all), make([]float64, len(x))
	if w == nil || len(x)%all != 0 {
		return nil
	}
	for at := 0; at < len(x); at += width {
		row := x[at : at+width]
		by := 1 / math.Sqrt(Dot(row, row)/float64(width)+float64(l.Config.NormEps))
		for i, v := range row {
			out[at+i] = v * by * float64(plus+w[at%all+i])
		}
	}
	return out
}

// Collapse returns the input of a block.
func (l *Layer) Collapse(prefix string, x []float64, m Mix) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	width, plus, by := h, float32(1), 1/float64(n)
	if m.Whole {
		width *= n
	}
	if m.Plain {
		plus = 0
	}
	if m.Sum {
		by = 1
	}
	normed := l.normStreams(prefix+"hc_norm", x, width, plus)
	mix := Mul(scaledBy(normed, 1/float64(n)), l.Weight(l.Tensor(prefix+"hc_down"), 0), l.T)
	for i, v := range mix {
		mix[i] = Silu(v)
	}
	mix = Mul(mix, l.Weight(l.Tensor(prefix+"hc_up"), 0), l.T)
	if len(mix) != len(normed) {
		return nil
	}
	if m.Raw {
		normed = x
	}
	out := make([]float64, l.T*h)
	for i, v := range normed {
		out[i/(n*h)*h+i%h] += sigmoid(mix[i]) * v * by
	}
	return out
}

// inject is how strongly each stream takes the output of a block.
func (l *Layer) inject(prefix string, x []float64) []float64 {
	out := Mul(scaledBy(l.streamNorm(prefix+"hc_norm", x), 1/float64(l.Streams.Count)), l.Weight(l.Tensor(prefix+"hc_inject"), 0), l.T)
	for i, v := range out {
		out[i] = 2 * sigmoid(v)
	}
	return out
}

// spread is rows y [T, H], for each stream by a weight [T, n].
func (l *Layer) spread(weights, y []float64) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	if len(weights) != l.T*n || len(y) != l.T*h {
		return nil
	}
	out := make([]float64, l.T*n*h)
	for i := range out {
		out[i] = weights[i/h] * y[i/(n*h)*h+i%h]
	}
	return out
}
