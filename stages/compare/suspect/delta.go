package suspect

import (
	"math"
	"slices"

	"krater/kernels/device"
	"krater/stages/model"
	"krater/stages/oracle"
)

// deltaMistakes returns the mistakes in gated DeltaNet.
func (l *layer) deltaMistakes(op string) []mistake {
	p := l.Delta
	switch op {
	case "delta_conv":
		return l.convMistakes()
	case "delta_out":
		return l.ruleMistakes()
	case "attn":
		x, gates, w := l.Get("delta_out"), l.Gates(), l.Weight(l.Tensor("delta_norm"), p.ValueDim)
		act := oracle.GateOf(p)
		norm := func(x []float64, w []float32) []float64 { return oracle.RMSNorm(x, w, l.DeltaEps) }
		name := l.Short(l.Tensor("delta_norm"))
		list := gateMistakesOf(norm(x, w), gates, act, "the output")
		plus := slices.Clone(w)
		for i := range plus {
			plus[i]++
		}
		list = append(list,
			mistake{name + " plus 1", func() []float64 { return oracle.Multiplied(norm(x, plus), gates, act) }},
			mistake{"the output not normed", func() []float64 { return oracle.Multiplied(x, gates, act) }},
			mistake{"the output gated first, then normed", func() []float64 { return norm(oracle.Multiplied(x, gates, act), w) }},
		)
		if o, ok := l.reordered(); ok {
			list = append(list, mistake{"gates of " + otherOrder(p), func() []float64 { return oracle.Multiplied(norm(x, w), o.Gates(), act) }})
		}
		return list
	}
	return nil
}

// gateMistakesOf returns the mistakes in multiplying x with what act makes of gates.
func gateMistakesOf(x, gates []float64, act func(float64) float64, whose string) []mistake {
	list := []mistake{{"the gate of " + whose + " missing", func() []float64 { return x }}}
	for what, f := range map[string]func(float64) float64{
		"no activation of the gate": func(v float64) float64 { return v }, "a sigmoid for the gate": sigmoid, "SiLU for the gate": oracle.Silu,
	} {
		if f(2) != act(2) {
			list = append(list, mistake{what, func() []float64 { return oracle.Multiplied(x, gates, f) }})
		}
	}
	slices.SortFunc(list[1:], func(a, b mistake) int { return len(a.what) - len(b.what) })
	return list
}

func sigmoid(v float64) float64 { return 1 / (1 + math.Exp(-v)) }

// reordered returns the layer with the columns of the projections taken in the other order; false for KDA, which has one.
func (l *layer) reordered() (o *layer, ok bool) {
	if l.Delta.Floor < 0 {
		return nil, false
	}
	return l.resized(func(p *device.DeltaNet) { p.ByKeyHead = !p.ByKeyHead }), true
}

// resized returns the layer with other sizes of DeltaNet, from its projections on.
func (l *layer) resized(change func(*device.DeltaNet)) *layer {
	values := map[string][]float64{}
	for _, x := range (model.DeltaNet{Sizes: l.Delta}).Projections() {
		values["in_proj_"+x.Role] = l.Get("in_proj_" + x.Role)
	}
	return l.put(func(s *oracle.Spec) { change(&s.Delta) }, values)
}

// otherOrder says in which order columns are read if in the other one.
func otherOrder(p device.DeltaNet) string {
	if p.ByKeyHead {
		return "key heads read one kind after the other"
	}
	return "all heads read by key head"
}

func (l *layer) convMistakes() []mistake {
	p, raw := l.Delta, l.DeltaRows()
	x, n := oracle.DeltaChannels(raw, p), p.Channels()
	list := []mistake{
		{"SiLU after the convolution missing", func() []float64 { return l.Convolution(x, false) }},
		{"the convolution missing", func() []float64 {
			return oracle.Multiplied(x, x, func(v float64) float64 { return oracle.Silu(v) / v })
		}},
		{"the convolution's taps in the reverse order", func() []float64 {
			w := l.ConvWeight()
			if w == nil {
				return nil
			}
			out := make([]float64, len(x))
			for i := range out {
				for b := range min(p.Taps, i/n+1) {
					out[i] += float64(w[i%n*p.Taps+b]) * x[i-b*n]
				}
				out[i] = oracle.Silu(out[i])
			}
			return out
		}},
	}
	if o, ok := l.reordered(); ok {
		list = append(list, mistake{"columns of " + otherOrder(p), func() []float64 { return l.Convolution(oracle.DeltaChannels(raw, o.Delta), true) }})
	}
	return list
}

func (l *layer) ruleMistakes() []mistake {
	p := l.Delta
	right := oracle.Right(p)
	var list []mistake
	of := func(what string, change func(r *oracle.DeltaRule)) {
		r := right
		change(&r)
		list = append(list, mistake{what, func() []float64 { return l.Rule(r) }})
	}
	of("queries and keys not of unit length", func(r *oracle.DeltaRule) { r.Unit = func(x []float64) []float64 { return x } })
	of("the decay's sign wrong", func(r *oracle.DeltaRule) { r.Decay = func(g float64) float64 { return math.Exp(-g) } })
	of("no decay", func(r *oracle.DeltaRule) { r.Decay = func(float64) float64 { return 1 } })
	of("queries not scaled by 1/sqrt(key size)", func(r *oracle.DeltaRule) { r.Scale = 1 })
	of("the output read before the token is written", func(r *oracle.DeltaRule) { r.Early = true })
	of("the decay after the token is written", func(r *oracle.DeltaRule) { r.Late = true })
	put := func(what string, values map[string][]float64) {
		for _, op := range []string{"delta_query", "delta_key", "delta_value", "delta_g", "delta_beta"} {
			if _, ok := values[op]; !ok {
				values[op] = l.Get(op)
			}
		}
		list = append(list, mistake{what, func() []float64 { return l.put(nil, values).Rule(right) }})
	}
	put("queries and keys swapped", map[string][]float64{"delta_query": l.Get("delta_key"), "delta_key": l.Get("delta_query")})
	put("the write strength 1", map[string][]float64{"delta_beta": slices.Repeat([]float64{1}, len(l.Get("delta_beta")))})
	if o, ok := l.reordered(); ok {
		put("b and a of "+otherOrder(p), map[string][]float64{"delta_g": o.Get("delta_g"), "delta_beta": o.Get("delta_beta")})
	} else {
		put("decays by softplus, without the lower bound (gate_lower_bound)", map[string][]float64{"delta_g": l.Decays(0)})
		put("one decay for all rows of a state: that of the first", map[string][]float64{"delta_g": firstOf(l.Get("delta_g"), p.KeyDim)})
	}
	dealt := func(op string) []float64 { // value head h reads key head h % key heads
		x := l.Get(op)
		from := make([]int, p.ValueHeads*p.KeyDim)
		for i := range from {
			from[i] = i/p.KeyDim%p.KeyHeads*p.Group()*p.KeyDim + i%p.KeyDim
		}
		return columns(x, l.T, from)
	}
	if p.KeyHeads > 1 && p.Group() > 1 {
		put("value heads dealt to key heads in turn (head h reads h % key heads)", map[string][]float64{"delta_query": dealt("delta_query"), "delta_key": dealt("delta_key")})
	}
	return list
}

// firstOf is x with the first of every n values in the place of all.
func firstOf(x []float64, n int) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] = x[i/n*n]
	}
	return out
}

// outputGateMistakes returns the mistakes in the gates of grouped-query attention's output.
func (l *layer) outputGateMistakes() []mistake {
	x, both, d := l.Get("attn_ungated"), l.Get("q_and_gate"), l.HeadDim
	part := func(at func(h, i int) int) []float64 {
		from := make([]int, l.Heads*d)
		for i := range from {
			from[i] = at(i/d, i%d)
		}
		rows, out := 2*l.Heads*d, make([]float64, 0, len(x))
		for t := range l.T {
			for _, c := range from {
				if t*rows+c >= len(both) {
					return nil
				}
				out = append(out, both[t*rows+c])
			}
		}
		return out
	}
	gates := part(func(h, i int) int { return h*2*d + d + i })
	return append(gateMistakesOf(x, gates, sigmoid, "attention's output"),
		mistake{"the first half of each head for the gate", func() []float64 {
			return oracle.Multiplied(x, part(func(h, i int) int { return h*2*d + i }), sigmoid)
		}},
		mistake{"the second half of q_proj for the gate (halves of the whole, not of each head)", func() []float64 {
			return oracle.Multiplied(x, part(func(h, i int) int { return (l.Heads+h)*d + i }), sigmoid)
		}},
	)
}

// queryMistakes returns the mistakes in taking queries from what holds queries and gates.
func (l *layer) queryMistakes() []mistake {
	both, d := l.Get("q_and_gate"), l.HeadDim
	take := func(at func(h, i int) int) func() []float64 {
		return func() []float64 {
			var out []float64
			for rows := both; len(rows) >= 2*l.Heads*d; rows = rows[2*l.Heads*d:] {
				for c := range l.Heads * d {
					out = append(out, rows[at(c/d, c%d)])
				}
			}
			return out
		}
	}
	return []mistake{
		{"the second half of each head, which is its gate", take(func(h, i int) int { return h*2*d + d + i })},
		{"the first half of q_proj (halves of the whole, not of each head)", take(func(h, i int) int { return h*d + i })},
	}
}
