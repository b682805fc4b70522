package suspect

import (
	"fmt"
	"math"

	"krater/kernels/device"
)

// mistakes are the ways in which an operator is usually done wrongly.
func (l *layer) mistakes(op string) []mistake {
	if p, ok := l.product(op); ok {
		return l.productMistakes(op, p)
	}
	switch op {
	case "embed":
		return l.embedMistakes()
	case "input_norm", "post_norm", "kv_norm", "final_norm":
		return l.normMistakes(op)
	case "q_pe", "k_pe":
		return l.rotationMistakes(op)
	case "attn", "attn_probs":
		return l.attentionMistakes(op)
	case "router_ids", "router_weights":
		return l.routerMistakes(op)
	case "experts_out":
		return append(l.networkMistakes("experts' ", l.experts), l.mixtureMistakes()...)
	case "shared_out":
		return l.networkMistakes("shared expert's ", func(k network) []float32 {
			return l.network(l.n.FFNNames("shared."), l.get("post_norm"), l.t, k)
		})
	case "mlp_out":
		if l.cfg.MoELayer(l.c.Layer) {
			return l.sumMistakes()
		}
		return l.networkMistakes("network's ", func(k network) []float32 {
			return l.network(l.n.FFNNames(""), l.get("post_norm"), l.t, k)
		})
	case "layer_out":
		return l.residualMistakes()
	}
	return nil
}

func (l *layer) embedMistakes() []mistake {
	ids := l.c.IDs[:l.t]
	of := func(what string, id func(i int) int32) mistake {
		return mistake{what, func() []float32 {
			other := make([]int32, len(ids))
			for i := range ids {
				other[i] = id(i)
			}
			return l.embed(other)
		}}
	}
	name := l.cfg.Names().Embed
	return []mistake{
		of("row 0 of the embedding for every token", func(int) int32 { return 0 }),
		of("the row after each token's (ids one too high)", func(i int) int32 { return ids[i] + 1 }),
		of("the row before each token's (ids one too low)", func(i int) int32 { return ids[i] - 1 }),
		of("the first token's row for every token", func(int) int32 { return ids[0] }),
		of("the tokens one place late", func(i int) int32 { return ids[max(0, i-1)] }),
		{"rows scaled by sqrt(hidden size)", func() []float32 { return scaled(l.embed(ids), math.Sqrt(float64(l.cfg.Hidden))) }},
		{name + " transposed", func() []float32 { return l.embedTransposed(func(at, h, v int) int { return at%v*h + at/v }) }},
		{name + " transposed", func() []float32 { return l.embedTransposed(func(at, h, v int) int { return at%h*v + at/h }) }},
	}
}

// embedTransposed is the tokens' rows where element at of the table [v, h] is read from from.
func (l *layer) embedTransposed(from func(at, h, v int) int) []float32 {
	h, v := l.cfg.Hidden, l.cfg.Vocab
	w := l.weight(l.cfg.Names().Embed, v*h)
	out := make([]float32, 0, l.t*h)
	for _, id := range l.c.IDs[:l.t] {
		for c := range h {
			out = append(out, w[from(int(id)*h+c, h, v)])
		}
	}
	return out
}

// normMistakes are those of RMSNorm and of what goes into it.
func (l *layer) normMistakes(op string) []mistake {
	eps, name := float64(l.cfg.NormEps), l.name("input_norm")
	in := l.in
	var list []mistake
	switch op {
	case "final_norm":
		name = l.cfg.Names().Norm
	case "kv_norm":
		in, name, eps = l.latent, l.name("kv_a_norm"), float64(l.a.LatentEps)
	case "post_norm":
		name = l.name("post_norm")
		in = func() []float32 { return sum(l.in(), l.get("mixer_out")) }
	}
	x := in()
	w := l.weight(name, 0)
	if len(x) == 0 || len(w) == 0 {
		return nil
	}
	norm := func(what string, x, w []float32, eps float64) {
		list = append(list, mistake{what, func() []float32 { return rms(x, w, eps) }})
	}
	ones := make([]float32, len(w))
	for i := range ones {
		ones[i] = 1
	}
	if op == "post_norm" {
		norm("the residual around attention missing", l.get("mixer_out"), w, eps)
		norm("attention's output missing", l.in(), w, eps)
	}
	norm(short(name)+" plus 1", x, sum(w, ones), eps)
	norm(short(name)+" minus 1", x, sum(w, scaled(ones, -1)), eps)
	norm(short(name)+" missing", x, ones, eps)
	if op == "input_norm" || op == "post_norm" {
		other := l.name("post_norm")
		if op == "post_norm" {
			other = l.name("input_norm")
		}
		norm(short(other)+" in the place of "+short(name), x, l.maybe(other), eps)
		for _, n := range l.neighbours(name) {
			norm(n+" in the place of "+short(name), x, l.maybe(n), eps)
		}
	}
	list = append(list, mistake{"no norm", func() []float32 { return x }},
		mistake{"the mean taken away (LayerNorm, not RMSNorm)", func() []float32 { return rms(centred(x, len(w)), w, eps) }})
	return list
}

// centred takes each row's mean away.
func centred(x []float32, width int) []float32 {
	y := append([]float32(nil), x...)
	for at := 0; at < len(y); at += width {
		var mean float64
		for _, v := range y[at : at+width] {
			mean += float64(v) / float64(width)
		}
		for i := range width {
			y[at+i] -= float32(mean)
		}
	}
	return y
}

func (l *layer) networkMistakes(whose string, of func(network) []float32) []mistake {
	var list []mistake
	for _, k := range []struct {
		what string
		how  network
	}{
		{"gate and up swapped", network{swapped: true}},
		{"gate_proj transposed", network{gate: true}},
		{"up_proj transposed", network{up: true}},
		{"down_proj transposed", network{down: true}},
		{"gate_proj transposed", network{gate: true, back: true}},
		{"up_proj transposed", network{up: true, back: true}},
		{"down_proj transposed", network{down: true, back: true}},
		{"GELU in the place of SiLU", network{gelu: true}},
		{"activation missing", network{none: true}},
		{"product with up missing", network{silent: true}},
	} {
		list = append(list, mistake{whose + k.what, func() []float32 { return of(k.how) }})
	}
	return list
}

// mixtureMistakes are those of who is added to what weight.
func (l *layer) mixtureMistakes() []mistake {
	ids, weights := l.get("router_ids"), l.get("router_weights")
	ones := make([]float32, len(weights))
	for i := range ones {
		ones[i] = 1
	}
	shifted := func(by float32) func() []float32 {
		return func() []float32 {
			other := append([]float32(nil), ids...)
			for i := range other {
				other[i] += by
			}
			return l.mixture(other, weights, network{})
		}
	}
	list := []mistake{
		{"experts one too high", shifted(1)},
		{"experts one too low", shifted(-1)},
		{"expert 0 for every choice", func() []float32 { return l.mixture(make([]float32, len(ids)), weights, network{}) }},
		{"router weights not applied", func() []float32 { return l.mixture(ids, ones, network{}) }},
		{"the best expert alone", func() []float32 {
			top, first := len(ids)/l.t, make([]float32, len(weights))
			for t := range l.t {
				first[t*top] = weights[t*top]
			}
			return l.mixture(ids, first, network{})
		}},
	}
	if s := float64(l.cfg.MoE.Router.Scale); s != 1 && s != 0 {
		list = append(list, mistake{"routed_scaling_factor missing", func() []float32 { return scaled(l.define("experts_out"), 1/s) }},
			mistake{"routed_scaling_factor applied twice", func() []float32 { return scaled(l.define("experts_out"), s) }})
	}
	return list
}

func (l *layer) routerMistakes(op string) []mistake {
	var list []mistake
	r := l.cfg.MoE.Router
	of := func(what string, change func(*device.Router)) {
		p := r
		change(&p)
		list = append(list, mistake{what, func() []float32 {
			ids, weights := l.route(p)
			if op == "router_ids" {
				return ids
			}
			return weights
		}})
	}
	if r.Groups > 1 {
		of("the choice not limited to groups", func(p *device.Router) { p.Groups = 1 })
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
	list = append(list, mistake{fmt.Sprintf("%s with rows in the reverse order", short(l.name("router"))), func() []float32 {
		logits := l.get("router_logits")
		from := make([]int, r.Experts)
		for i := range from {
			from[i] = r.Experts - 1 - i
		}
		return l.with("router_logits", columns(logits, l.t, from)).get(op)
	}})
	return list
}

// sumMistakes are those of adding the routed and the shared experts.
func (l *layer) sumMistakes() []mistake {
	list := []mistake{{"routed experts missing", func() []float32 {
		if l.cfg.MoE.Shared == 0 {
			return make([]float32, l.t*l.cfg.Hidden)
		}
		return l.get("shared_out")
	}}}
	if l.cfg.MoE.Shared > 0 {
		list = append(list, mistake{"the shared expert missing", func() []float32 { return l.get("experts_out") }},
			mistake{"the shared expert added twice", func() []float32 { return sum(l.define("mlp_out"), l.get("shared_out")) }})
	}
	return list
}

func (l *layer) residualMistakes() []mistake {
	mixer, mlp := func() []float32 { return l.get("mixer_out") }, func() []float32 { return l.get("mlp_out") }
	return []mistake{
		{"the residual around the network missing", mlp},
		{"the residual around attention missing", func() []float32 { return sum(mixer(), mlp()) }},
		{"attention's output missing in the residual stream", func() []float32 { return sum(l.in(), mlp()) }},
		{"the network's output missing", func() []float32 { return sum(l.in(), mixer()) }},
		{"the residual taken after the norm", func() []float32 { return sum(l.get("post_norm"), mlp()) }},
		{"the network's output added twice", func() []float32 { return sum(sum(sum(l.in(), mixer()), mlp()), mlp()) }},
	}
}
