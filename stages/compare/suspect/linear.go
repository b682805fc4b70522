package suspect

import "krater/stages/oracle"

// order is a permutation of the rows of a weight.
type order struct {
	what string
	from []int // row i is read from row from[i]
}

// orders returns the layouts in which converters leave the rows of heads.
func orders(p oracle.Product) []order {
	dim := 0
	for _, n := range p.Parts {
		dim += n
	}
	if dim == 0 {
		return nil
	}
	each := func(of func(i int) int) []int { // the same in every head
		from := make([]int, p.Heads*dim)
		for r := range from {
			from[r] = r/dim*dim + of(r%dim)
		}
		return from
	}
	both := func(list []order, what, back string, from []int) []order {
		return append(list, order{what, from}, order{back, inverse(from)})
	}
	var list []order
	if p.Rope >= 0 {
		at, n := 0, p.Parts[p.Rope]
		if p.Rope == 1 {
			at = p.Parts[0]
		}
		gathered := pairs(n)
		list = both(list, "rows for rope in halves instead of pairs", "rows for rope in pairs instead of halves", each(func(i int) int {
			if i < at || i >= at+n {
				return i
			}
			return at + gathered[i-at]
		}))
	}
	if len(p.Parts) == 2 {
		a := p.Parts[0]
		list = both(list, "the parts of a head in the other order", "the parts of a head in the other order", each(func(i int) int { return (i + a) % dim }))
	}
	if p.Heads == 1 {
		return list
	}
	dealt := make([]int, p.Heads*dim)
	for r := range dealt {
		dealt[r] = r%p.Heads*dim + r/p.Heads
	}
	list = both(list, "heads dealt out value by value", "values of all heads gathered", dealt)
	if len(p.Parts) == 2 {
		a, b := p.Parts[0], p.Parts[1]
		split := make([]int, p.Heads*dim)
		for r := range split {
			if split[r] = r/a*dim + r%a; r >= p.Heads*a {
				r -= p.Heads * a
				split[p.Heads*a+r] = r/b*dim + a + r%b
			}
		}
		list = both(list, "split wrongly: all first parts, then all second ones", "split wrongly: first parts and second ones head by head", split)
	}
	return list
}

func (l *layer) productMistakes(op string, p oracle.Product) []mistake {
	x := p.In()
	w := l.Matrix(p, x)
	if w == nil {
		return nil
	}
	in, name, bias := len(x)/l.T, l.Short(l.Tensor(p.Role)), l.Tensor(p.Role+"_bias")
	plain := oracle.Mul(x, w, l.T)
	add := func(y []float64) []float64 { return l.Capped(op, l.Biased(p, y)) }
	list := []mistake{
		{name + " transposed", func() []float64 { return add(oracle.Mul(x, transposed(w, p.Out, in), l.T)) }},
		{name + " transposed", func() []float64 { return add(oracle.Mul(x, transposed(w, in, p.Out), l.T)) }},
	}
	for _, o := range orders(p) {
		list = append(list, mistake{name + " with " + o.what, func() []float64 { return add(columns(plain, l.T, o.from)) }})
		if bias != "" {
			list = append(list, mistake{name + " and its bias with " + o.what, func() []float64 { return columns(add(plain), l.T, o.from) }})
		}
	}
	if p.ColumnDim > 0 && in%p.ColumnDim == 0 && in > p.ColumnDim {
		dealt, heads := make([]int, in), in/p.ColumnDim
		for i := range dealt {
			dealt[i] = i%heads*p.ColumnDim + i/heads
		}
		for _, from := range [][]int{dealt, inverse(dealt)} {
			list = append(list, mistake{name + " with columns in another order of heads", func() []float64 { return add(oracle.Mul(columns(x, l.T, from), w, l.T)) }})
		}
	}
	if bias != "" {
		list = append(list, mistake{l.Short(bias) + " missing", func() []float64 { return plain }})
	}
	rivals := l.Neighbours(p.Role)
	if p.Alike != "" {
		rivals = append([]string{l.Tensor(p.Alike)}, rivals...)
	}
	for _, other := range rivals {
		list = append(list, mistake{other + " in the place of " + name, func() []float64 { return add(oracle.Mul(x, l.maybe(other), l.T)) }})
	}
	if op == "logits" && l.Config.Softcap > 0 {
		list = append(list, mistake{"final_logit_softcapping missing", func() []float64 { return plain }})
	}
	list = append(list, l.fusedMistakes(op)...)
	if op != "mixer_out" && op != "kv_b" && op != "logits" {
		list = append(list, mistake{"an input that is not normalised", func() []float64 {
			return add(oracle.Mul(l.unnormed(op), w, l.T))
		}})
	}
	return list
}

// unnormed returns the input of a product if the norm before it were missing.
func (l *layer) unnormed(op string) []float64 {
	switch {
	case op == "router_logits":
		return oracle.Sum(l.In(), l.Get("mixer_out"))
	case op == "q" && l.QRank > 0:
		return l.Get("q_a")
	}
	return l.In()
}

// fusedMistakes take q, k or v from their rows joined and divided as heads grouped by key head: the
// queries of a group, its key, its value.
func (l *layer) fusedMistakes(op string) []mistake {
	a := &l.Spec
	if a.KVHeads == 0 { // latent attention has other matrices
		return nil
	}
	group := a.Heads / a.KVHeads
	// at returns the position of head h of op among the grouped heads.
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
	return []mistake{{"rows split wrongly: q, k and v joined one after another, read as grouped by key head", func() []float64 {
		q, k, v := l.Define("q"), l.Define("k"), l.Define("v")
		out := make([]float64, 0, l.T*heads*a.HeadDim)
		for t := range l.T {
			row := append(append(append([]float64(nil), q[t*a.Heads*a.HeadDim:][:a.Heads*a.HeadDim]...),
				k[t*a.KVHeads*a.HeadDim:][:a.KVHeads*a.HeadDim]...), v[t*a.KVHeads*a.HeadDim:][:a.KVHeads*a.HeadDim]...)
			for h := range heads {
				out = append(out, row[at(h)*a.HeadDim:][:a.HeadDim]...)
			}
		}
		return out
	}}}
}
