package suspect

import (
	"fmt"
	"math"
)

// attending is how attention is computed; zero: rightly.
type attending struct {
	whole   bool    // no causal mask
	strict  bool    // a token does not see itself, but for the first
	scale   float64 // of the scores; 0: the config's
	dealt   bool    // query head h reads key head h % kv heads
	first   bool    // every query head reads key head 0
	swapped bool    // keys and values
}

// attention gives the output [t, heads*v] and the probabilities [heads, t, t].
func (l *layer) attention(k attending) (out, probs []float32) {
	a, t := l.a, l.t
	score, value, width, ok := l.heads(k)
	if !ok {
		return nil, nil
	}
	scale := float64(a.Scale)
	if k.scale != 0 {
		scale = k.scale
	}
	out, probs = make([]float32, t*a.Heads*width), make([]float32, a.Heads*t*t)
	for h := range a.Heads {
		for i := range t {
			n := i + 1
			switch {
			case k.whole:
				n = t
			case k.strict && i > 0:
				n = i
			}
			p := make([]float64, n)
			for j := range p {
				p[j] = scale * score(h, i, j)
			}
			softmax(p)
			to := out[(i*a.Heads+h)*width:][:width]
			for j, w := range p {
				probs[(h*t+i)*t+j] = float32(w)
				for c, v := range value(h, j)[:width] {
					to[c] += float32(w) * v
				}
			}
		}
	}
	return out, probs
}

// heads gives the unscaled score of query head h of token i with the key of token j, and
// the value that head h reads of token j.
func (l *layer) heads(k attending) (score func(h, i, j int) float64, value func(h, j int) []float32, width int, ok bool) {
	a, t := l.a, l.t
	if a.grouped {
		return l.groupedHeads(k)
	}
	q, qPe, kPe, kv := l.get("q"), l.get("q_pe"), l.get("k_pe"), l.get("kv_b")
	if len(q) != t*a.Heads*a.QKDim() || len(qPe) != t*a.Heads*a.RopeDim || len(kPe) != t*a.RopeDim || len(kv) != t*a.Heads*(a.Nope+a.VDim) {
		return nil, nil, 0, false
	}
	score = func(h, i, j int) float64 {
		row := i*a.Heads + h
		return dot(q[row*a.QKDim():][:a.Nope], kv[(j*a.Heads+h)*(a.Nope+a.VDim):]) +
			dot(qPe[row*a.RopeDim:][:a.RopeDim], kPe[j*a.RopeDim:])
	}
	return score, func(h, j int) []float32 {
		head := kv[(j*a.Heads+h)*(a.Nope+a.VDim):][:a.Nope+a.VDim]
		if k.swapped && a.Nope == a.VDim {
			return head[:a.Nope]
		}
		return head[a.Nope:]
	}, a.VDim, true
}

func (l *layer) groupedHeads(k attending) (score func(h, i, j int) float64, value func(h, j int) []float32, width int, ok bool) {
	a, t := l.a, l.t
	q, keys, values := l.get("q_pe"), l.get("k_pe"), l.get("v")
	if k.swapped {
		keys, values = values, keys
	}
	d := a.HeadDim
	if len(q) != t*a.Heads*d || len(keys) != t*a.KVHeads*d || len(values) != len(keys) {
		return nil, nil, 0, false
	}
	shared := func(h int) int {
		switch {
		case k.first:
			return 0
		case k.dealt:
			return h % a.KVHeads
		}
		return h / (a.Heads / a.KVHeads)
	}
	score = func(h, i, j int) float64 {
		return dot(q[(i*a.Heads+h)*d:][:d], keys[(j*a.KVHeads+shared(h))*d:])
	}
	return score, func(h, j int) []float32 { return values[(j*a.KVHeads+shared(h))*d:][:d] }, d, true
}

// split is another number of heads that the same matrices could have.
type split struct {
	what   string
	change func(*sizes)
}

// splits are the head counts that the tensors of grouped-query attention allow beside the
// config's. (In latent attention the shared rotated key fixes the size of a head.)
func (l *layer) splits() []split {
	a, rope := l.a, *l.a.Rope
	if !a.grouped {
		return nil
	}
	var list []split
	for _, f := range []struct{ by, of int }{{2, 1}, {1, 2}, {4, 1}, {1, 4}} {
		heads, kv, d := a.Heads*f.by/f.of, a.KVHeads*f.by/f.of, a.HeadDim*f.of/f.by
		if heads*d != a.Heads*a.HeadDim || kv*d != a.KVHeads*a.HeadDim || kv < 1 || d%2 != 0 {
			continue
		}
		what := fmt.Sprintf("a wrong head count: %d heads of %d and %d for keys, not %d of %d and %d", heads, d, kv, a.Heads, a.HeadDim, a.KVHeads)
		list = append(list, split{what, func(a *sizes) {
			a.Heads, a.KVHeads, a.HeadDim = heads, kv, d
			a.Scale = float32(1 / math.Sqrt(float64(d)))
			r := *a.Rope
			r.Dim = rope.Dim * f.of / f.by
			r.InvFreq = inverseFrequencies(r.Dim, rope.Theta)
			a.Rope = &r
		}})
	}
	return list
}

func (l *layer) attentionMistakes(op string) []mistake {
	pick := func(l *layer, k attending) []float32 {
		out, probs := l.attention(k)
		if op == "attn_probs" {
			return probs
		}
		return out
	}
	of := func(what string, k attending) mistake {
		return mistake{what, func() []float32 { return pick(l, k) }}
	}
	a := l.a
	root := 1 / math.Sqrt(float64(a.QKDim()))
	list := []mistake{
		of("no causal mask", attending{whole: true}),
		of("a mask one too narrow: a token does not see itself", attending{strict: true}),
		of("scores not scaled", attending{scale: 1}),
		of("scores scaled by 1/sqrt(head size) alone", attending{scale: root}),
		of("keys and values swapped", attending{swapped: true}),
	}
	if a.grouped {
		list = append(list, of("query heads dealt to key heads in turn (head h reads h % key heads)", attending{dealt: true}),
			of("every query head reads key head 0", attending{first: true}))
	} else {
		list = append(list, of("scores scaled by 1/sqrt of the part without rope", attending{scale: 1 / math.Sqrt(float64(a.Nope))}))
	}
	// Queries and keys alike, which no operator before shows by itself.
	for _, t := range l.turns() {
		list = append(list, mistake{t.what, func() []float32 {
			o := l.clone(func(*sizes) {})
			o.values = map[string][]float32{"q_pe": l.rotated("q_pe", t.r), "k_pe": l.rotated("k_pe", t.r)}
			return pick(o, attending{})
		}})
	}
	for _, s := range l.splits() {
		list = append(list, mistake{s.what, func() []float32 {
			o := l.clone(s.change)
			o.values = map[string][]float32{"q": l.get("q"), "k": l.get("k"), "v": l.get("v")}
			o.values["q_pe"], o.values["k_pe"] = o.define("q_pe"), o.define("k_pe")
			return pick(o, attending{})
		}})
	}
	return list
}
