package oracle

import (
	"math"
	"slices"

	"krater/kernels/device"
	"krater/stages/model"
)

// Net is the weights of a feed-forward network.
type Net struct {
	Gate, Up, Down             []float32 // [FF, H], [FF, H], [H, FF]
	GateBias, UpBias, DownBias []float32 // [FF], [FF], [H]; nil: none
	Act                        device.Activation
}

// Feed is a feed-forward network of t rows of x.
type Feed func(x []float64, n Net, t int) []float64

// SwiGLU is down(act(gate x, up x)) with the biases and the activation of the network.
func SwiGLU(x []float64, n Net, t int) []float64 { return Gated(activate(n.Act))(x, n, t) }

// activate is SwiGLU's activation: silu(g) * u, that of gpt-oss (arXiv 2508.10925, section 2.3), or
// GELU by its tanh approximation (device.GELUTanh).
func activate(a device.Activation) func(g, u float64) float64 {
	return func(g, u float64) float64 {
		alpha, limit := float64(a.Alpha), float64(a.Limit)
		if a.Alpha == 0 {
			alpha = 1
		}
		if a.Limit == 0 {
			limit = math.Inf(1)
		}
		g, u = min(g, limit), min(max(u, -limit), limit)
		if a == device.GELUTanh {
			return g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g))) * u
		}
		return Silu(alpha*g) / alpha * (u + float64(a.Shift))
	}
}

// Gate returns the rows of x, each times the sigmoid of its logit.
func Gate(x, logits []float64) []float64 {
	if len(logits) == 0 {
		return nil
	}
	out, n := slices.Clone(x), len(x)/len(logits)
	for i := range out {
		out[i] /= 1 + math.Exp(-logits[i/n])
	}
	return out
}

// Gated returns a network with what makes one value of those of gate and up.
func Gated(act func(g, u float64) float64) Feed { return gated(act, func([]float64) {}) }

// Rounded is SwiGLU whose products get rows that round has changed in place.
func Rounded(round func(row []float64)) Feed {
	return func(x []float64, n Net, t int) []float64 {
		x = slices.Clone(x)
		for row := range slices.Chunk(x, len(x)/t) {
			round(row)
		}
		return gated(activate(n.Act), round)(x, n, t)
	}
}

// gated is Gated; round changes the rows between its products.
func gated(act func(g, u float64) float64, round func(row []float64)) Feed {
	return func(x []float64, n Net, t int) []float64 {
		mid, u := biased(Mul(x, n.Gate, t), n.GateBias), biased(Mul(x, n.Up, t), n.UpBias)
		if mid == nil || len(mid) != len(u) {
			return nil
		}
		for i, g := range mid {
			mid[i] = act(g, u[i])
		}
		for row := range slices.Chunk(mid, len(mid)/t) {
			round(row)
		}
		return biased(Mul(mid, n.Down, t), n.DownBias)
	}
}

// biased is x plus the bias in every row; nil: none.
func biased(x []float64, bias []float32) []float64 {
	if bias == nil {
		return x
	}
	return Sum(x, bias)
}

// Network is feed on t rows of x with weights of the files.
func (l *Layer) Network(n model.FFNNames, act device.Activation, x []float64, t int, feed Feed) []float64 {
	w := Net{Act: act, Gate: l.Weight(n.Gate, 0), Up: l.Weight(n.Up, 0), Down: l.Weight(n.Down, 0)}
	if len(x) == 0 || w.Gate == nil || w.Up == nil || w.Down == nil {
		return nil
	}
	if n.GateBias != "" {
		w.GateBias, w.UpBias, w.DownBias = l.Weight(n.GateBias, 0), l.Weight(n.UpBias, 0), l.Weight(n.DownBias, 0)
		if w.GateBias == nil || w.UpBias == nil || w.DownBias == nil {
			return nil
		}
	}
	return feed(x, w, t)
}

// mlp returns the network of the layer: dense, or the routed experts and the shared ones.
func (l *Layer) mlp() []float64 {
	if !l.Routed {
		return l.Network(l.Dense, l.Act(), l.Get("post_norm"), l.T, SwiGLU)
	}
	if l.OwnNorms {
		norm := func(op, role string) []float64 {
			return RMSNorm(l.Get(op), l.Weight(l.Tensor(role), l.Config.Hidden), float64(l.Config.NormEps))
		}
		return Sum(norm("experts_out", "experts_norm"), norm("shared_out", "shared_norm"))
	}
	out := l.Get("experts_out")
	if l.Shared.Gate != "" {
		out = Sum(out, l.Get("shared_out"))
	}
	return out
}

// Act returns the activation of the layer's networks.
func (l *Layer) Act() device.Activation { return l.Config.Layers[l.Index].FFN.Activation() }

// Mixture returns the sum over the choices ids [T, K] of weights times the experts' results; ids
// count modulo the number of experts.
func (l *Layer) Mixture(ids, weights []float64, feed Feed) []float64 {
	in := "post_norm"
	if l.OwnNorms {
		in = "expert_norm"
	}
	x, h, e := l.Get(in), l.Config.Hidden, l.Config.MoE.Experts
	if len(ids) != len(weights) || len(x) != l.T*h || e == 0 {
		return nil
	}
	top, out := len(ids)/l.T, make([]float64, l.T*h)
	// Expert by expert, so that each is read once.
	for expert := range e {
		var rows []int
		var in []float64
		for i, id := range ids {
			if (int(id)%e+e)%e == expert {
				rows = append(rows, i)
				in = append(in, x[i/top*h:][:h]...)
			}
		}
		if len(rows) == 0 {
			continue
		}
		y := l.Network(l.Config.ExpertNames(l.Index, expert), l.Config.MoE.Act, in, len(rows), feed)
		if y == nil {
			return nil
		}
		for j, i := range rows {
			for c, v := range y[j*h : (j+1)*h] {
				out[i/top*h+c] += weights[i] * v
			}
		}
	}
	return out
}
