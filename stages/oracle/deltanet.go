package oracle

import (
	"math"
	"strings"

	"krater/kernels/device"
	"krater/stages/model"
)

// delta is gated DeltaNet (arXiv 2412.06464, and Qwen3-Next's modelling code where the paper is
// silent), and Kimi Delta Attention (arXiv 2510.26692).
type delta struct{}

var _ = define(func(s *Spec, d model.DeltaNet) mixer {
	s.Delta, s.DeltaEps, s.OutDim = d.Sizes, float64(d.NormEps), d.Sizes.ValueDim
	return delta{}
})

func (delta) operators() []string {
	return []string{"in_proj_qkvz", "in_proj_q", "in_proj_k", "in_proj_v", "in_proj_qkv", "in_proj_z", "conv_state", "in_proj_ba", "in_proj_b", "in_proj_a", "delta_conv",
		"delta_query", "delta_key", "delta_value", "delta_g", "delta_beta", "delta_out", "delta_state", "attn"}
}

func (delta) product(l *Layer, op string) (Product, bool) {
	p := Product{In: l.of("input_norm"), Heads: 1, Rope: -1}
	d := l.Delta
	switch op {
	case "in_proj_qkvz":
		p.Role, p.Out = "qkvz", d.Width()
	case "in_proj_ba":
		p.Role, p.Out = "ba", 2*d.ValueHeads
	case "in_proj_qkv":
		p.Role, p.Out = "qkv", d.Channels()
		if d.Floor < 0 { // joined of three
			return p, false
		}
	case "in_proj_q", "in_proj_k":
		p.Role, p.Out = strings.TrimPrefix(op, "in_proj_"), d.KeyHeads*d.KeyDim
	case "in_proj_v":
		p.Role, p.Out = "v", d.Values()
	case "in_proj_z":
		p.Role, p.Out = "z", d.Values()
	case "in_proj_b":
		p.Role, p.Out, p.Alike = "b", d.ValueHeads, "a"
	case "in_proj_a":
		p.Role, p.Out, p.Alike = "a", d.ValueHeads*d.Rates(), "b"
	default:
		return p, false
	}
	if low := p.Role + "_low"; l.Tensor(low) != "" {
		p.Alike, p.In = "", func() []float64 {
			return Mul(l.Get("input_norm"), l.Weight(l.Tensor(low), d.KeyDim*l.Config.Hidden), l.T)
		}
	}
	return p, true
}

func (delta) unrotated(*Layer, string) ([]float64, int) { return nil, 0 }

func (delta) rotatedPart(_ *Spec, q []float32) []float32 { return q }

func (delta) attention(*Layer, *Attention) bool { return false }

func (delta) define(l *Layer, op string) ([]float64, bool) {
	p := l.Delta
	switch op {
	case "in_proj_qkv":
		return beside(l.T, beside(l.T, l.Get("in_proj_q"), l.Get("in_proj_k")), l.Get("in_proj_v")), true
	case "delta_conv":
		return l.Convolution(DeltaChannels(l.DeltaRows(), p), true), true
	case "conv_state":
		x := DeltaChannels(l.DeltaRows(), p)
		return x[max(0, len(x)-(p.Taps-1)*p.Channels()):], true
	case "delta_query":
		return perValueHead(part(l.Get("delta_conv"), p.Channels(), 0, p.KeyHeads*p.KeyDim), p.KeyDim, p), true
	case "delta_key":
		return perValueHead(part(l.Get("delta_conv"), p.Channels(), p.KeyHeads*p.KeyDim, p.KeyHeads*p.KeyDim), p.KeyDim, p), true
	case "delta_value":
		return part(l.Get("delta_conv"), p.Channels(), 2*p.KeyHeads*p.KeyDim, p.Values()), true
	case "delta_g":
		return l.Decays(l.Delta.Floor), true
	case "delta_beta":
		b := columnsOf(l.DeltaNumbers(), p.Numbers(), p.Strengths(), p.KeyHeads, p.Group())
		for i, v := range b {
			b[i] = sigmoid(v)
		}
		return b, true
	case "delta_out":
		out, _ := l.rule(Right(p))
		return out, true
	case "delta_state":
		_, states := l.rule(Right(p))
		return states, true
	case "attn":
		norm := RMSNorm(l.Get("delta_out"), l.Weight(l.Tensor("delta_norm"), p.ValueDim), l.DeltaEps)
		return Multiplied(norm, l.Gates(), GateOf(p)), true
	}
	return nil, false
}

// Decays returns the logarithm of what stays of a state, [T, value heads] or, where rows have decays of their own, [T, value heads, key dim]. floor, below
// 0, bounds it; 0: nothing does.
func (l *Layer) Decays(floor float32) []float64 {
	p := l.Delta
	n := p.ValueHeads * p.Rates()
	a := columnsOf(l.DeltaNumbers(), p.Numbers(), p.Decays(), p.KeyHeads, p.Group()*p.Rates())
	log, bias := l.Weight(l.Tensor("a_log"), p.ValueHeads), l.Weight(l.Tensor("dt_bias"), n)
	if log == nil || bias == nil {
		return nil
	}
	for i := range a {
		rate, v := math.Exp(float64(log[i%n/p.Rates()])), a[i]+float64(bias[i%n])
		if a[i] = -rate * math.Log1p(math.Exp(v)); floor < 0 {
			a[i] = float64(floor) * sigmoid(rate*v)
		}
	}
	return a
}

// DeltaRows returns the queries, keys, values and gates of each token, [T, width], in the order of the columns
// of l.Delta.
func (l *Layer) DeltaRows() []float64 {
	if l.Tensor("qkvz") != "" {
		return l.Get("in_proj_qkvz")
	}
	return beside(l.T, l.Get("in_proj_qkv"), l.Get("in_proj_z"))
}

// DeltaNumbers is b and a of each token, [T, 2*value heads].
func (l *Layer) DeltaNumbers() []float64 {
	if l.Tensor("ba") != "" {
		return l.Get("in_proj_ba")
	}
	return beside(l.T, l.Get("in_proj_b"), l.Get("in_proj_a"))
}

// beside is t rows of x, each followed by that of y.
func beside(t int, x, y []float64) []float64 {
	out := make([]float64, 0, len(x)+len(y))
	for i := range t {
		out = append(append(out, x[i*len(x)/t:(i+1)*len(x)/t]...), y[i*len(y)/t:(i+1)*len(y)/t]...)
	}
	return out
}

// columnsOf returns the columns at c of rows of width values: n consecutive ones of each key head.
func columnsOf(x []float64, width int, c device.Columns, heads, n int) (out []float64) {
	for ; len(x) >= width; x = x[width:] {
		for h := range heads {
			out = append(out, x[c.At+h*c.Step:][:n]...)
		}
	}
	return out
}

// DeltaChannels returns the queries, keys and values of DeltaRows: what the convolution passes over.
func DeltaChannels(x []float64, p device.DeltaNet) (out []float64) {
	for ; len(x) >= p.Width(); x = x[p.Width():] {
		row := x[:p.Width()]
		out = append(out, columnsOf(row, p.Width(), p.Queries(), p.KeyHeads, p.KeyDim)...)
		out = append(out, columnsOf(row, p.Width(), p.Keys(), p.KeyHeads, p.KeyDim)...)
		out = append(out, columnsOf(row, p.Width(), p.Inputs(), p.KeyHeads, p.Group()*p.ValueDim)...)
	}
	return out
}

// Gates returns the gates of the output, [T, values].
func (l *Layer) Gates() []float64 {
	p := l.Delta
	return columnsOf(l.DeltaRows(), p.Width(), p.Gates(), p.KeyHeads, p.Group()*p.ValueDim)
}

// Convolution returns the causal convolution of x [T, channels], then SiLU unless that is left out.
func (l *Layer) Convolution(x []float64, silu bool) []float64 {
	n, taps := l.Delta.Channels(), l.Delta.Taps
	w, out := l.ConvWeight(), make([]float64, len(x))
	if w == nil {
		return nil
	}
	for i := range out {
		t, c := i/n, i%n
		for back := range min(taps, t+1) {
			out[i] += float64(w[c*taps+taps-1-back]) * x[(t-back)*n+c]
		}
		if silu {
			out[i] = Silu(out[i])
		}
	}
	return out
}

// ConvWeight returns the weights of the convolutions, [channels, taps].
func (l *Layer) ConvWeight() (w []float32) {
	p := l.Delta
	for _, x := range (model.DeltaNet{Sizes: p}).Convolutions() {
		part := l.Weight(l.Tensor(x.Role), x.Rows*p.Taps)
		if part == nil {
			return nil
		}
		w = append(w, part...)
	}
	return w
}

// perValueHead repeats the heads of dim values of x for the value heads that read them.
func perValueHead(x []float64, dim int, p device.DeltaNet) (out []float64) {
	for ; len(x) >= dim; x = x[dim:] {
		for range p.Group() {
			out = append(out, x[:dim]...)
		}
	}
	return out
}

// Unit is x divided by its length.
func Unit(x []float64) []float64 {
	out, by := make([]float64, len(x)), 1/math.Sqrt(Dot(x, x)+1e-6)
	for i, v := range x {
		out[i] = v * by
	}
	return out
}

// DeltaRule says how the recurrence is computed: the factor of the state from delta_g, what is done to
// queries and keys, and the factor of queries.
type DeltaRule struct {
	Decay func(g float64) float64
	Unit  func(x []float64) []float64
	Scale float64
	Early bool // the output is read before the token is written
	Late  bool // the state decays when the token is written, not before
}

// Right is the rule as it is defined.
func Right(p device.DeltaNet) DeltaRule {
	return DeltaRule{Decay: math.Exp, Unit: Unit, Scale: 1 / math.Sqrt(float64(p.KeyDim))}
}

// Rule returns the gated delta rule, token by token, [T, values].
func (l *Layer) Rule(r DeltaRule) []float64 {
	out, _ := l.rule(r)
	return out
}

// rule returns Rule, and the states after the last token, [value heads, key dim, value dim].
func (l *Layer) rule(r DeltaRule) (out, states []float64) {
	p := l.Delta
	q, k, v, g, beta := l.Get("delta_query"), l.Get("delta_key"), l.Get("delta_value"), l.Get("delta_g"), l.Get("delta_beta")
	heads, rates := p.ValueHeads, p.Rates()
	if len(q) != l.T*heads*p.KeyDim || len(k) != len(q) || len(v) != l.T*p.Values() || len(g) != l.T*heads*rates || len(beta) != l.T*heads {
		return nil, nil
	}
	out = make([]float64, l.T*p.Values())
	for h := range heads {
		state := make([]float64, p.KeyDim*p.ValueDim)
		for t := range l.T {
			at := t*heads + h
			query, key := r.Unit(q[at*p.KeyDim:][:p.KeyDim]), r.Unit(k[at*p.KeyDim:][:p.KeyDim])
			to, decays := out[at*p.ValueDim:][:p.ValueDim], make([]float64, p.KeyDim)
			for i := range decays {
				decays[i] = r.Decay(g[at*rates+i%rates])
			}
			for c := range p.ValueDim {
				known := 0.0
				for i := range key {
					s := &state[i*p.ValueDim+c]
					if r.Early {
						to[c] += r.Scale * query[i] * *s
					}
					if !r.Late {
						*s *= decays[i]
					}
					known += key[i] * *s
				}
				change := (v[at*p.ValueDim+c] - known) * beta[at]
				for i := range key {
					s := &state[i*p.ValueDim+c]
					*s += key[i] * change
					if r.Late {
						*s *= decays[i]
					}
					if !r.Early {
						to[c] += r.Scale * query[i] * *s
					}
				}
			}
		}
		states = append(states, state...)
	}
	return out, states
}

// GateOf returns the function of the gates of the output.
func GateOf(p device.DeltaNet) func(float64) float64 {
	if p.SigmoidGate {
		return sigmoid
	}
	return Silu
}

// Multiplied is x times what f makes of y, element by element; nil where they do
// not fit.
func Multiplied(x, y []float64, f func(float64) float64) []float64 {
	if len(x) != len(y) {
		return nil
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * f(y[i])
	}
	return out
}
