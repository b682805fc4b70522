package suspect

import (
	"fmt"
)

// product is an operator that is x times a weight, plus a bias where there is one.
type product struct {
	in           func() []float32 // [t, in]
	weight, bias string
	out          int
	// The rows of the weight are heads of parts, such as without and with rope; rope is the
	// part that is rotated, -1: none.
	heads int
	parts []int
	rope  int
	// The columns are heads of columnDim values; 0: they are no heads.
	columnDim int
	other     []string // weights of the same shape that may stand in its place
}

// product describes an operator that is one.
func (l *layer) product(op string) (product, bool) {
	a, h := l.a, l.cfg.Hidden
	normed := func() []float32 { return l.get("input_norm") }
	if l.c.Layer < 0 {
		names := l.cfg.Names()
		return product{in: func() []float32 { return l.get("final_norm") }, weight: names.Head, out: l.cfg.Vocab, heads: 1, rope: -1, other: []string{names.Embed}}, op == "logits"
	}
	switch op {
	case "mixer_out":
		columns := a.VDim
		if a.grouped {
			columns = a.HeadDim
		}
		return product{in: func() []float32 { return l.get("attn") }, weight: l.name("o"), out: h, heads: 1, rope: -1, columnDim: columns}, true
	case "router_logits":
		return product{in: func() []float32 { return l.get("post_norm") }, weight: l.name("router"), out: l.cfg.MoE.Experts, heads: 1, rope: -1}, true
	}
	if a.grouped {
		p := product{in: normed, heads: a.KVHeads, parts: []int{a.HeadDim}, out: a.KVHeads * a.HeadDim}
		switch op {
		case "q":
			p.heads, p.out, p.weight, p.bias = a.Heads, a.Heads*a.HeadDim, l.name("q"), l.bias("q")
		case "k":
			p.weight, p.bias, p.other = l.name("k"), l.bias("k"), []string{l.name("v")}
		case "v":
			p.weight, p.bias, p.other, p.rope = l.name("v"), l.bias("v"), []string{l.name("k")}, -1
		default:
			return product{}, false
		}
		return p, true
	}
	switch op {
	case "q_a":
		return product{in: normed, weight: l.name("q_a"), out: a.QRank, heads: 1, rope: -1}, true
	case "q":
		p := product{in: normed, weight: l.name("q"), out: a.Heads * a.QKDim(), heads: a.Heads, parts: []int{a.Nope, a.RopeDim}, rope: 1}
		if l.a.QRank > 0 {
			p.weight = l.name("q_b")
			p.in = func() []float32 {
				return rms(l.get("q_a"), l.weight(l.name("q_a_norm"), a.QRank), float64(a.LatentEps))
			}
		}
		return p, true
	case "kv_a":
		return product{in: normed, weight: l.name("kv_a"), out: a.KVRank + a.RopeDim, heads: 1, parts: []int{a.KVRank, a.RopeDim}, rope: 1}, true
	case "kv_b":
		return product{in: func() []float32 { return l.get("kv_norm") }, weight: l.name("kv_b"), out: a.Heads * (a.Nope + a.VDim), heads: a.Heads, parts: []int{a.Nope, a.VDim}, rope: -1}, true
	}
	return product{}, false
}

// matrix is the product's weight, nil and an error in l unless it has the size.
func (p product) matrix(l *layer, x []float32) []float32 {
	if len(x) == 0 {
		return nil
	}
	return l.weight(p.weight, p.out*len(x)/l.t)
}

func (p product) values(l *layer) []float32 {
	x := p.in()
	return p.biased(l, mul(x, p.matrix(l, x), l.t))
}

// biased adds the bias, if there is one.
func (p product) biased(l *layer, y []float32) []float32 {
	if p.bias == "" {
		return y
	}
	return sum(y, l.weight(p.bias, p.out))
}

// order is a permutation of the rows of a weight.
type order struct {
	what string
	from []int // row i is read from row from[i]
}

// orders are the layouts in which converters leave the rows of heads.
func (p product) orders() []order {
	dim := 0
	for _, n := range p.parts {
		dim += n
	}
	if dim == 0 {
		return nil
	}
	each := func(of func(i int) int) []int { // the same in every head
		from := make([]int, p.heads*dim)
		for r := range from {
			from[r] = r/dim*dim + of(r%dim)
		}
		return from
	}
	both := func(list []order, what, back string, from []int) []order {
		return append(list, order{what, from}, order{back, inverse(from)})
	}
	var list []order
	if p.rope >= 0 {
		at, n := 0, p.parts[p.rope]
		if p.rope == 1 {
			at = p.parts[0]
		}
		gathered := pairs(n)
		list = both(list, "rows for rope in halves instead of pairs", "rows for rope in pairs instead of halves", each(func(i int) int {
			if i < at || i >= at+n {
				return i
			}
			return at + gathered[i-at]
		}))
	}
	if len(p.parts) == 2 {
		a := p.parts[0]
		list = both(list, "the parts of a head in the other order", "the parts of a head in the other order", each(func(i int) int { return (i + a) % dim }))
	}
	if p.heads == 1 {
		return list
	}
	dealt := make([]int, p.heads*dim)
	for r := range dealt {
		dealt[r] = r%p.heads*dim + r/p.heads
	}
	list = both(list, "heads dealt out value by value", "values of all heads gathered", dealt)
	if len(p.parts) == 2 {
		a, b := p.parts[0], p.parts[1]
		split := make([]int, p.heads*dim)
		for r := range split {
			if split[r] = r/a*dim + r%a; r >= p.heads*a {
				r -= p.heads * a
				split[p.heads*a+r] = r/b*dim + a + r%b
			}
		}
		list = both(list, "split wrongly: all first parts, then all second ones", "split wrongly: first parts and second ones head by head", split)
	}
	return list
}

func (l *layer) productMistakes(op string, p product) []mistake {
	x := p.in()
	w := p.matrix(l, x)
	if w == nil {
		return nil
	}
	in, name := len(x)/l.t, short(p.weight)
	plain := mul(x, w, l.t)
	add := func(y []float32) []float32 { return p.biased(l, y) }
	list := []mistake{
		{name + " transposed", func() []float32 { return add(mul(x, transposed(w, p.out, in), l.t)) }},
		{name + " transposed", func() []float32 { return add(mul(x, transposed(w, in, p.out), l.t)) }},
	}
	for _, o := range p.orders() {
		list = append(list, mistake{name + " with " + o.what, func() []float32 { return add(columns(plain, l.t, o.from)) }})
		if p.bias != "" {
			list = append(list, mistake{name + " and its bias with " + o.what, func() []float32 { return columns(add(plain), l.t, o.from) }})
		}
	}
	if p.columnDim > 0 && in%p.columnDim == 0 && in > p.columnDim {
		dealt, heads := make([]int, in), in/p.columnDim
		for i := range dealt {
			dealt[i] = i%heads*p.columnDim + i/heads
		}
		for _, from := range [][]int{dealt, inverse(dealt)} {
			list = append(list, mistake{name + " with columns in another order of heads", func() []float32 { return add(mul(columns(x, l.t, from), w, l.t)) }})
		}
	}
	if p.bias != "" {
		list = append(list, mistake{short(p.bias) + " missing", func() []float32 { return plain }})
	}
	for _, other := range append(p.other, l.neighbours(p.weight)...) {
		list = append(list, mistake{other + " in the place of " + name, func() []float32 { return add(mul(x, l.maybe(other), l.t)) }})
	}
	if l.c.Layer >= 0 && l.a.grouped {
		list = append(list, l.fusedMistakes(op)...)
	}
	if op != "mixer_out" && op != "kv_b" && op != "logits" {
		list = append(list, mistake{"an input that is not normalised", func() []float32 {
			return add(mul(l.unnormed(op), w, l.t))
		}})
	}
	return list
}

// unnormed is what a product would read if the norm before it were left out.
func (l *layer) unnormed(op string) []float32 {
	switch {
	case op == "router_logits":
		return sum(l.in(), l.get("mixer_out"))
	case op == "q" && l.a.QRank > 0:
		return l.get("q_a")
	}
	return l.in()
}

// maybe is a tensor that a mistake would read; nil if there is none.
func (l *layer) maybe(name string) []float32 {
	if w, err := l.c.Weight(name); err == nil {
		return w
	}
	return nil
}

// neighbours are the tensors of the same place in the layers before and after.
func (l *layer) neighbours(name string) []string {
	var list []string
	for _, i := range []int{l.c.Layer - 1, l.c.Layer + 1} {
		if l.c.Layer >= 0 && i >= 0 && i < len(l.cfg.Layers) {
			list = append(list, fmt.Sprintf("model.layers.%d.%s", i, short(name)))
		}
	}
	return list
}

// fusedMistakes take q, k or v from their rows joined and divided as heads grouped by key
// head: the queries of a group, its key, its value.
func (l *layer) fusedMistakes(op string) []mistake {
	a := l.a
	group := 0
	if a.KVHeads > 0 {
		group = a.Heads / a.KVHeads
	}
	// at is where head h of op lies among the grouped heads.
	var at func(h int) int
	heads := a.KVHeads
	switch op {
	case "q":
		at, heads = func(h int) int { return h/group*(group+2) + h%group }, a.Heads
	case "k":
		at = func(h int) int { return h*(group+2) + group }
	case "v":
		at = func(h int) int { return h*(group+2) + group + 1 }
	default:
		return nil
	}
	return []mistake{{"rows split wrongly: q, k and v joined one after another, read as grouped by key head", func() []float32 {
		q, k, v := l.define("q"), l.define("k"), l.define("v")
		out := make([]float32, 0, l.t*heads*a.HeadDim)
		for t := range l.t {
			row := append(append(append([]float32(nil), q[t*a.Heads*a.HeadDim:][:a.Heads*a.HeadDim]...),
				k[t*a.KVHeads*a.HeadDim:][:a.KVHeads*a.HeadDim]...), v[t*a.KVHeads*a.HeadDim:][:a.KVHeads*a.HeadDim]...)
			for h := range heads {
				out = append(out, row[at(h)*a.HeadDim:][:a.HeadDim]...)
			}
		}
		return out
	}}}
}
