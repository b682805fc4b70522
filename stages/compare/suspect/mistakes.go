package suspect

import (
	"fmt"
	"math"
	"slices"

	"krater/kernels/device"
	"krater/stages/oracle"
)

// mistakes returns the ways in which an operator is usually done wrongly.
func (l *layer) mistakes(op string) []mistake {
	if p, ok := l.Product(op); ok {
		return l.productMistakes(op, p)
	}
	if n, ok := l.Norm(op); ok {
		return l.normMistakes(op, n)
	}
	if l.Streams.Several() {
		if list := l.streamMistakes(op); list != nil {
			return list
		}
	}
	if l.Blocks.Chooses() {
		if list := l.blockMistakes(op); list != nil {
			return list
		}
	}
	if list := l.entryMistakes(op); list != nil {
		return list
	}
	switch op {
	case "embed":
		return l.embedMistakes()
	case "per_layer_inputs":
		return l.perLayerMistakes()
	case "q_pe", "k_pe":
		return l.rotationMistakes(op)
	case "v_norm":
		return l.valueMistakes()
	case "indexer_query", "indexer_keys", "indexer_block_keys", "indexer_weights", "indexer_scores", "selected":
		return l.indexMistakes(op)
	case "delta_conv", "delta_out":
		return l.deltaMistakes(op)
	case "attn", "attn_ungated", "attn_probs":
		switch {
		case l.Delta.Taps > 0:
			return l.deltaMistakes(op)
		case op == "attn" && l.Gated:
			return l.outputGateMistakes()
		}
		return l.attentionMistakes(op)
	case "q":
		return l.queryMistakes()
	case "router_ids", "router_weights":
		return l.routerMistakes(op)
	case "experts_out":
		return append(l.networkMistakes("experts' ", func(feed oracle.Feed) []float64 {
			return l.Mixture(l.Get("router_ids"), l.Get("router_weights"), feed)
		}), l.mixtureMistakes()...)
	case "shared_out":
		if l.Tensor("shared_gate") != "" {
			return l.gateMistakes()
		}
		fallthrough
	case "shared_raw":
		return l.networkMistakes("shared expert's ", func(feed oracle.Feed) []float64 {
			return l.Network(l.Shared, l.Act(), l.Get("post_norm"), l.T, feed)
		})
	case "mlp_out", "mlp_raw":
		if l.Routed {
			return l.sumMistakes()
		}
		return l.networkMistakes("network's ", func(feed oracle.Feed) []float64 {
			return l.Network(l.Dense, l.Act(), l.Get("post_norm"), l.T, feed)
		})
	case "layer_out":
		return l.residualMistakes()
	}
	return nil
}

func (l *layer) embedMistakes() []mistake {
	ids := l.c.IDs[:l.T]
	of := func(what string, id func(i int) int32) mistake {
		return mistake{what, func() []float64 {
			other := make([]int32, len(ids))
			for i := range ids {
				other[i] = id(i)
			}
			return l.Embed(other)
		}}
	}
	name := l.Tensor("embed")
	return []mistake{
		of("row 0 of the embedding for every token", func(int) int32 { return 0 }),
		of("the row after each token's (ids one too high)", func(i int) int32 { return ids[i] + 1 }),
		of("the row before each token's (ids one too low)", func(i int) int32 { return ids[i] - 1 }),
		of("the first token's row for every token", func(int) int32 { return ids[0] }),
		of("the tokens one place late", func(i int) int32 { return ids[max(0, i-1)] }),
		{"rows scaled by sqrt(hidden size)", func() []float64 { return scaled(l.Embed(ids), math.Sqrt(float64(l.Config.Hidden))) }},
		{name + " transposed", func() []float64 { return l.embedTransposed(func(at, h, v int) int { return at%v*h + at/v }) }},
		{name + " transposed", func() []float64 { return l.embedTransposed(func(at, h, v int) int { return at%h*v + at/h }) }},
	}
}

// embedTransposed returns the tokens' rows where element at of the table [v, h] is read from from.
func (l *layer) embedTransposed(from func(at, h, v int) int) []float64 {
	h, v := l.Config.Hidden, l.Config.Vocab
	w := l.Weight(l.Tensor("embed"), v*h)
	out := make([]float64, 0, l.T*h)
	for _, id := range l.c.IDs[:l.T] {
		for c := range h {
			out = append(out, float64(w[from(int(id)*h+c, h, v)]))
		}
	}
	return out
}

// normMistakes returns the mistakes in RMSNorm and its inputs.
func (l *layer) normMistakes(op string, n oracle.Norm) []mistake {
	x, name := n.In(), l.Tensor(n.Role)
	w := l.NormWeight(n)
	if len(x) == 0 || len(w) == 0 {
		return nil
	}
	var list []mistake
	norm := func(what string, x []float64, w []float32) {
		list = append(list, mistake{what, func() []float64 { return oracle.RMSNorm(x, w, n.Eps) }})
	}
	plus := func(w []float32, by float32) []float32 {
		y := slices.Clone(w)
		for i := range y {
			y[i] += by
		}
		return y
	}
	if op == "post_norm" {
		norm("the residual around attention missing", l.Get("mixer_out"), w)
		norm("attention's output missing", l.In(), w)
	}
	norm(l.Short(name)+" plus 1", x, plus(w, 1))
	norm(l.Short(name)+" minus 1", x, plus(w, -1))
	norm(l.Short(name)+" missing", x, plus(make([]float32, len(w)), 1))
	switch op {
	case "router_norm":
		norm("1/sqrt(hidden size) of the router's norm missing", x, times(w, math.Sqrt(float64(n.Width))))
		list = append(list, mistake{"the input normed for the network, not by itself", func() []float64 {
			in := l.Get("post_norm")
			out := make([]float64, len(in))
			for i, v := range in {
				out[i] = v * float64(w[i%len(w)])
			}
			return out
		}})
	case "expert_norm":
		other := l.Tensor("post_norm")
		norm(l.Short(other)+" in the place of "+l.Short(name), x, l.maybe(other))
	case "input_norm", "post_norm":
		other := l.Tensor("post_norm")
		if op == "post_norm" {
			other = l.Tensor("input_norm")
		}
		norm(l.Short(other)+" in the place of "+l.Short(name), x, l.maybe(other))
		for _, other := range l.Neighbours(n.Role) {
			norm(other+" in the place of "+l.Short(name), x, l.maybe(other))
		}
	}
	if n.Width == l.HeadDim && (op == "q_norm" || op == "k_norm") {
		list = append(list, mistake{"all heads normed as one row", func() []float64 {
			wide := make([]float32, 0, len(x)/l.T)
			for len(wide) < len(x)/l.T {
				wide = append(wide, w...)
			}
			return oracle.RMSNorm(x, wide, n.Eps)
		}})
	}
	if n.Width != l.HeadDim && (op == "q_norm" || op == "k_norm") {
		list = append(list, mistake{"each head normed by itself", func() []float64 {
			out := oracle.RMSNorm(x, plus(make([]float32, l.HeadDim), 1), n.Eps)
			for i := range out {
				out[i] *= float64(w[i%len(w)])
			}
			return out
		}})
	}
	list = append(list, mistake{"no norm", func() []float64 { return x }},
		mistake{"the mean taken away (LayerNorm, not RMSNorm)", func() []float64 { return oracle.RMSNorm(centred(x, len(w)), w, n.Eps) }})
	return list
}

// networkMistakes returns the mistakes in a feed-forward network; of computes it with another network.
func (l *layer) networkMistakes(whose string, of func(oracle.Feed) []float64) []mistake {
	var list []mistake
	add := func(what string, feed oracle.Feed) {
		list = append(list, mistake{whose + what, func() []float64 { return of(feed) }})
	}
	change := func(what string, f func(n *oracle.Net, in int)) {
		add(what, func(x []float64, n oracle.Net, t int) []float64 {
			f(&n, len(x)/t)
			return oracle.SwiGLU(x, n, t)
		})
	}
	change("gate and up swapped", func(n *oracle.Net, _ int) { n.Gate, n.Up = n.Up, n.Gate })
	for _, back := range []bool{false, true} { // written transposed, or read so
		flip := func(w []float32, in int) []float32 {
			if back {
				return transposed(w, in, len(w)/in)
			}
			return transposed(w, len(w)/in, in)
		}
		change("gate_proj transposed", func(n *oracle.Net, in int) { n.Gate = flip(n.Gate, in) })
		change("up_proj transposed", func(n *oracle.Net, in int) { n.Up = flip(n.Up, in) })
		change("down_proj transposed", func(n *oracle.Net, in int) { n.Down = flip(n.Down, len(n.Down)/in) })
	}
	act := func(what string, f func(g, u float64) float64) {
		add(what, func(x []float64, n oracle.Net, t int) []float64 { return oracle.Gated(f)(x, n, t) })
	}
	gelu := "GELU in the place of SiLU"
	if l.Act() == device.GELUTanh {
		gelu = "exact GELU in the place of its tanh approximation"
		act("SiLU in the place of GELU", func(g, u float64) float64 { return oracle.Silu(g) * u })
	}
	act(gelu, func(g, u float64) float64 { return g * (1 + math.Erf(g/math.Sqrt2)) / 2 * u })
	act("activation missing", func(g, u float64) float64 { return g * u })
	act("product with up missing", func(g, _ float64) float64 { return oracle.Silu(g) })
	return append(list, l.extraMistakes(whose, of)...)
}

// extraMistakes returns the mistakes in what gpt-oss's network has beside its matrices.
func (l *layer) extraMistakes(whose string, of func(oracle.Feed) []float64) []mistake {
	m := l.Config.MoE
	if a := l.Act(); !m.Biases && (a == device.Activation{} || a == device.GELUTanh) {
		return nil
	}
	var list []mistake
	change := func(what string, f func(n *oracle.Net)) {
		list = append(list, mistake{whose + what, func() []float64 {
			return of(func(x []float64, n oracle.Net, t int) []float64 {
				f(&n)
				return oracle.SwiGLU(x, n, t)
			})
		}})
	}
	halves := func(gate, up []float32) (one, two []float32) { // of rows that alternate, read one half after the other
		both := make([]float32, 0, 2*len(gate))
		width := max(1, len(gate)/max(1, m.FF))
		for at := 0; at < len(gate); at += width {
			both = append(append(both, gate[at:at+width]...), up[at:at+width]...)
		}
		return both[:len(gate)], both[len(gate):]
	}
	change("gate and up read as halves, not in turn", func(n *oracle.Net) {
		n.Gate, n.Up = halves(n.Gate, n.Up)
		if n.GateBias != nil {
			n.GateBias, n.UpBias = halves(n.GateBias, n.UpBias)
		}
	})
	change("gate and up swapped with their biases", func(n *oracle.Net) {
		n.Gate, n.Up, n.GateBias, n.UpBias = n.Up, n.Gate, n.UpBias, n.GateBias
	})
	change("biases of gate and up missing", func(n *oracle.Net) { n.GateBias, n.UpBias = nil, nil })
	change("bias of down missing", func(n *oracle.Net) { n.DownBias = nil })
	change("biases missing", func(n *oracle.Net) { n.GateBias, n.UpBias, n.DownBias = nil, nil, nil })
	change("plus 1 of up missing", func(n *oracle.Net) { n.Act.Shift = 0 })
	change("alpha of the activation 1", func(n *oracle.Net) { n.Act.Alpha = 1 })
	list = append(list, mistake{whose + "gate clamped below too", func() []float64 {
		return of(func(x []float64, n oracle.Net, t int) []float64 {
			act := n.Act
			return oracle.Gated(func(g, u float64) float64 { return act.Of(max(g, -float64(act.Limit)), u) })(x, n, t)
		})
	}})
	change("limit of gate and up missing", func(n *oracle.Net) { n.Act.Limit = 0 })
	change("activation silu(gate) * up", func(n *oracle.Net) { n.Act = device.Activation{} })
	return list
}

// mixtureMistakes returns the mistakes in pairing experts with weights.
func (l *layer) mixtureMistakes() []mistake {
	ids, weights := l.Get("router_ids"), l.Get("router_weights")
	ones := make([]float64, len(weights))
	for i := range ones {
		ones[i] = 1
	}
	shifted := func(by float64) func() []float64 {
		return func() []float64 {
			other := append([]float64(nil), ids...)
			for i := range other {
				other[i] += by
			}
			return l.Mixture(other, weights, oracle.SwiGLU)
		}
	}
	list := []mistake{
		{"experts one too high", shifted(1)},
		{"experts one too low", shifted(-1)},
		{"expert 0 for every choice", func() []float64 { return l.Mixture(make([]float64, len(ids)), weights, oracle.SwiGLU) }},
		{"router weights not applied", func() []float64 { return l.Mixture(ids, ones, oracle.SwiGLU) }},
		{"the best expert alone", func() []float64 {
			top, first := len(ids)/l.T, make([]float64, len(weights))
			for t := range l.T {
				first[t*top] = weights[t*top]
			}
			return l.Mixture(ids, first, oracle.SwiGLU)
		}},
	}
	if s := float64(l.Config.MoE.Router.Scale); s != 1 && s != 0 {
		list = append(list, mistake{"routed_scaling_factor missing", func() []float64 { return scaled(l.Define("experts_out"), 1/s) }},
			mistake{"routed_scaling_factor applied twice", func() []float64 { return scaled(l.Define("experts_out"), s) }})
	}
	return list
}

func (l *layer) routerMistakes(op string) []mistake {
	var list []mistake
	r, correction := l.Config.MoE.Router, l.Correction()
	by := func(what string, route func(logits []float64) ([]int, []float64)) {
		list = append(list, mistake{what, func() []float64 {
			ids, weights := l.Route(route)
			if op == "router_ids" {
				return ids
			}
			return weights
		}})
	}
	of := func(what string, change func(*device.Router)) {
		p := r
		change(&p)
		by(what, func(logits []float64) ([]int, []float64) { return oracle.Route(logits, correction, l.Factors(), p) })
	}
	if r.Groups > 1 {
		of("the choice not limited to groups", func(p *device.Router) { p.Groups = 1 })
		if r.GroupScore == device.GroupTop2Sum {
			of("groups rated by their best expert, not by the sum of their two best", func(p *device.Router) { p.GroupScore = device.GroupMax })
		} else {
			of("groups rated by the sum of their two best experts, not by their best", func(p *device.Router) { p.GroupScore = device.GroupTop2Sum })
		}
	}
	if r.Scoring == device.ScoreSigmoid {
		of("softmax in the place of the sigmoid", func(p *device.Router) { p.Scoring = device.ScoreSoftmax })
	} else {
		of("the sigmoid in the place of softmax", func(p *device.Router) { p.Scoring = device.ScoreSigmoid })
	}
	if correction != nil {
		name := l.Short(l.Tensor("correction"))
		by(name+" missing", func(logits []float64) ([]int, []float64) { return oracle.Route(logits, nil, l.Factors(), r) })
		if op == "router_weights" {
			list = append(list, mistake{name + " added to the weights too", func() []float64 { return l.correctedWeights(correction) }})
		}
		by(name+" added to the logits", func(logits []float64) ([]int, []float64) {
			return oracle.Route(oracle.Sum(logits, correction), nil, l.Factors(), r)
		})
	}
	if l.Factors() != nil && op == "router_weights" {
		by("factors of experts missing", func(logits []float64) ([]int, []float64) { return oracle.Route(logits, correction, nil, r) })
	}
	if op == "router_weights" {
		what := "router weights divided by their sum"
		if r.Normalize {
			what = "router weights not divided by their sum"
		}
		of(what, func(p *device.Router) { p.Normalize = !p.Normalize })
		of("routed_scaling_factor missing", func(p *device.Router) { p.Scale = 1 })
		of("router weights divided by their sum and routed_scaling_factor missing", func(p *device.Router) { p.Normalize, p.Scale = true, 1 })
	}
	list = append(list, mistake{fmt.Sprintf("%s with rows in the reverse order", l.Short(l.Tensor("router"))), func() []float64 {
		logits := l.Get("router_logits")
		from := make([]int, r.Experts)
		for i := range from {
			from[i] = r.Experts - 1 - i
		}
		return l.with("router_logits", columns(logits, l.T, from)).Get(op)
	}})
	return list
}

// correctedWeights returns the weights of the chosen experts if the correction were added to them.
func (l *layer) correctedWeights(correction []float64) []float64 {
	r, logits, ids := l.Config.MoE.Router, l.Get("router_logits"), l.Get("router_ids")
	if len(logits) != l.T*r.Experts || len(ids) != l.T*r.TopK {
		return nil
	}
	out := make([]float64, 0, len(ids))
	for t := range l.T {
		scores, sum := oracle.Sum(oracle.Scores(logits[t*r.Experts:][:r.Experts], r.Scoring), correction), 1.0
		row := ids[t*r.TopK:][:r.TopK]
		if r.Normalize {
			sum = 0
			for _, e := range row {
				sum += scores[int(e)]
			}
		}
		for _, e := range row {
			out = append(out, scores[int(e)]/sum*float64(r.Scale))
		}
	}
	return out
}

// gateMistakes returns the mistakes of the gate of the shared expert.
func (l *layer) gateMistakes() []mistake {
	x, logits := l.Get("shared_raw"), l.Get("shared_gate_logit")
	if len(logits) != l.T {
		return nil
	}
	rows := func(factor func(logit float64) float64) func() []float64 {
		return func() []float64 {
			out, n := slices.Clone(x), len(x)/l.T
			for i := range out {
				out[i] *= factor(logits[i/n])
			}
			return out
		}
	}
	return []mistake{
		{"the shared expert's gate missing", func() []float64 { return x }},
		{"the sigmoid of the shared expert's gate missing", rows(func(g float64) float64 { return g })},
		{"SiLU in the place of the sigmoid of the shared expert's gate", rows(oracle.Silu)},
		{"1 minus the shared expert's gate", rows(func(g float64) float64 { return 1 / (1 + math.Exp(g)) })},
	}
}

// sumMistakes returns the mistakes of adding the routed and the shared experts.
func (l *layer) sumMistakes() []mistake {
	list := []mistake{{"routed experts missing", func() []float64 {
		if l.Shared.Gate == "" {
			return make([]float64, l.T*l.Config.Hidden)
		}
		return l.Get("shared_out")
	}}}
	if l.Shared.Gate != "" {
		list = append(list, mistake{"the shared expert missing", func() []float64 { return l.Get("experts_out") }},
			mistake{"the shared expert added twice", func() []float64 { return oracle.Sum(l.Define("mlp_out"), l.Get("shared_out")) }})
	}
	return list
}

func (l *layer) residualMistakes() []mistake {
	mixer, mlp := func() []float64 { return l.Get("mixer_out") }, func() []float64 { return l.Get("mlp_out") }
	list := []mistake{
		{"the residual around the network missing", mlp},
		{"the residual around attention missing", func() []float64 { return oracle.Sum(mixer(), mlp()) }},
		{"attention's output missing in the residual stream", func() []float64 { return oracle.Sum(l.In(), mlp()) }},
		{"the network's output missing", func() []float64 { return oracle.Sum(l.In(), mixer()) }},
		{"the residual taken after the norm", func() []float64 { return oracle.Sum(l.Get("post_norm"), mlp()) }},
		{"the network's output added twice", func() []float64 { return oracle.Sum(oracle.Sum(oracle.Sum(l.In(), mixer()), mlp()), mlp()) }},
	}
	name := l.Tensor("scalar")
	if name == "" {
		return list
	}
	by := 1.0
	if w := l.Weight(name, 1); w != nil {
		by = float64(w[0])
	}
	for i, m := range list {
		list[i].values = func() []float64 { return scaled(m.values(), by) }
	}
	list = append(list, mistake{l.Short(name) + " missing", func() []float64 { return scaled(l.Define("layer_out"), 1/by) }})
	if l.PerLayer > 0 {
		list = append(list, mistake{"the output of the rows for single layers missing", func() []float64 {
			return scaled(oracle.Sum(oracle.Sum(l.In(), mixer()), mlp()), by)
		}})
	}
	return list
}

// valueMistakes returns the mistakes in the norm of values.
func (l *layer) valueMistakes() []mistake {
	list := []mistake{{"values not normed", func() []float64 { return l.Get("v") }}}
	if l.Tensor("v") == "" { // values are made of keys
		list = append(list,
			mistake{"the normed and rotated keys for values", func() []float64 { return l.Get("k_pe") }},
			mistake{"the normed keys for values", func() []float64 { return l.Get("k_norm") }})
	}
	return list
}

// perLayerMistakes returns the mistakes in the rows for single layers.
func (l *layer) perLayerMistakes() []mistake {
	of := func(what string, token, embedding float64) mistake {
		return mistake{what, func() []float64 { return l.PerLayerInputs(token, embedding) }}
	}
	return []mistake{
		of("the token's own rows missing", 0, 1),
		of("the part of the embedding missing", 1, 0),
		of("the token's own rows not scaled by sqrt(their width)", 1/math.Sqrt(float64(l.PerLayer)), 1),
		of("the sum not divided by sqrt(2)", math.Sqrt2, math.Sqrt2),
	}
}
