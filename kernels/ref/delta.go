package ref

import (
	"math"

	"krater/kernels/device"
)

// Gate is out *= sigmoid(x), element by element.
func Gate(out, x []float32) {
	for i, v := range x {
		out[i] = float32(float64(out[i]) / (1 + math.Exp(-float64(v))))
	}
}

// Conv is silu of the causal convolution w [taps, channels] of the rows x [T, width] of spans; out
// is [T, channels]. tail [slots*taps, channels] has the row of position p of a sequence in row p mod
// taps of its slot. It gets the new rows.
func Conv(out, x, w, tail []float32, spans []device.Span, p device.DeltaNet) {
	n := p.Channels()
	for _, s := range spans {
		for r := range s.Len {
			row := channels(x[(s.Row+r)*p.Width():][:p.Width()], p)
			for c, v := range row {
				sum := 0.0
				for back := range p.Taps {
					at := (s.Pos + r - back + p.Taps) % p.Taps
					old := v
					if back > 0 {
						old = tail[(s.Slot*p.Taps+at)*n+c]
					}
					sum += float64(w[(p.Taps-1-back)*n+c]) * float64(old)
				}
				out[(s.Row+r)*n+c] = float32(Silu(sum))
			}
			copy(tail[(s.Slot*p.Taps+(s.Pos+r)%p.Taps)*n:][:n], row)
		}
	}
}

// channels returns the columns of an input row that the convolution sees, in the order of its output.
func channels(x []float32, p device.DeltaNet) []float32 {
	var out []float32
	for _, part := range []struct {
		device.Columns
		n int
	}{{p.Queries(), p.KeyDim}, {p.Keys(), p.KeyDim}, {p.Inputs(), p.Group() * p.ValueDim}} {
		for h := range p.KeyHeads {
			out = append(out, x[part.At+h*part.Step:][:part.n]...)
		}
	}
	return out
}

// Delta is the gated delta rule (arXiv 2412.06464) for the rows of spans, token by token:
// device.List.Delta says what it computes. x is [T, channels], ba [T, numbers], states
// [slots*StateRows, value dim], out [T, values].
func Delta(out, x, ba, decay, bias, states []float32, spans []device.Span, p device.DeltaNet) {
	keys, values := p.KeyHeads*p.KeyDim, 2*p.KeyHeads*p.KeyDim
	b, a := p.Strengths(), p.Decays()
	for _, s := range spans {
		for h := range p.ValueHeads {
			at := (s.Slot*p.ValueHeads + h) * p.KeyDim * p.ValueDim
			state, head, j := states[at:][:p.KeyDim*p.ValueDim], h/p.Group(), h%p.Group()
			for t := s.Row; t < s.Row+s.Len; t++ {
				row, numbers := x[t*p.Channels():][:p.Channels()], ba[t*p.Numbers():]
				d := deltaToken{
					q: unit(row[head*p.KeyDim:][:p.KeyDim]), k: unit(row[keys+head*p.KeyDim:][:p.KeyDim]),
					v:        row[values+h*p.ValueDim:][:p.ValueDim],
					strength: 1 / (1 + math.Exp(-float64(numbers[b.At+head*b.Step+j]))),
				}
				for c := range p.KeyDim {
					rate, at := c%p.Rates(), j*p.Rates()+c%p.Rates()
					v := float64(numbers[a.At+head*a.Step+at]) + float64(bias[h*p.Rates()+rate])
					g := float64(decay[h]) * softplus(v)
					if p.Floor < 0 {
						g = float64(p.Floor) * sigmoid(-float64(decay[h])*v)
					}
					d.decay = append(d.decay, math.Exp(g))
				}
				d.apply(out[t*p.Values()+h*p.ValueDim:][:p.ValueDim], state)
			}
		}
	}
}

// softplus is log(1 + exp(x)).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// unit is x over its length.
func unit(x []float32) []float64 {
	out, by := widen(x), 1/math.Sqrt(dot(x, x)+1e-6)
	for i := range out {
		out[i] *= by
	}
	return out
}

// deltaToken is a token of one value head.
type deltaToken struct {
	q, k, decay []float64 // [key dim]
	v           []float32
	strength    float64
}

// apply changes the state and writes the output.
func (d *deltaToken) apply(out, state []float32) {
	n := len(d.v)
	for c, v := range d.v {
		known, sum := 0.0, 0.0
		for i, k := range d.k {
			known += k * d.decay[i] * float64(state[i*n+c])
		}
		change := (float64(v) - known) * d.strength
		for i, k := range d.k {
			state[i*n+c] = float32(d.decay[i]*float64(state[i*n+c]) + k*change)
			sum += d.q[i] * float64(state[i*n+c])
		}
		out[c] = float32(sum / math.Sqrt(float64(len(d.k))))
	}
}

// GatedNorm is RMSNorm with w over each value head of out [T, values], times silu or the sigmoid of the gates in x
// [T, width], in place.
func GatedNorm(out, x, w []float32, eps float32, p device.DeltaNet) {
	RMSNorm(out, out, w, eps)
	z := p.Gates()
	for i, v := range out {
		t, h, c := i/p.Values(), i%p.Values()/p.ValueDim, i%p.ValueDim
		gate := x[t*p.Width()+z.At+h/p.Group()*z.Step+h%p.Group()*p.ValueDim+c]
		factor := Silu(float64(gate))
		if p.SigmoidGate {
			factor = sigmoid(float64(gate))
		}
		out[i] = float32(float64(v) * factor)
	}
}
