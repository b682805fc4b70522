package suspect

import (
	"fmt"
	"math"

	"krater/stages/oracle"
)

// split is another number of heads that the same matrices could have.
type split struct {
	what   string
	change func(*oracle.Spec)
}

// splits returns the head counts, other than the config's, that the tensors of grouped-query
// attention allow. (In latent attention the shared rotated key fixes the size of a head.)
func (l *layer) splits() []split {
	if l.KVHeads == 0 {
		return nil
	}
	var list []split
	for _, f := range []struct{ by, of int }{{2, 1}, {1, 2}, {4, 1}, {1, 4}} {
		heads, kv, d := l.Heads*f.by/f.of, l.KVHeads*f.by/f.of, l.HeadDim*f.of/f.by
		if heads*d != l.Heads*l.HeadDim || kv*d != l.KVHeads*l.HeadDim || kv < 1 || d%2 != 0 {
			continue
		}
		what := fmt.Sprintf("a wrong head count: %d heads of %d and %d for keys, not %d of %d and %d", heads, d, kv, l.Heads, l.HeadDim, l.KVHeads)
		list = append(list, split{what, func(s *oracle.Spec) {
			s.Heads, s.KVHeads, s.HeadDim, s.QKDim, s.OutDim = heads, kv, d, d, d
			s.Scale = 1 / math.Sqrt(float64(d))
			s.Rope.Dim = s.Rope.Dim * f.of / f.by
			s.Rope.InvFreq = inverseFrequencies(s.Rope.Dim, s.Rope.Theta)
		}})
	}
	return list
}

// put returns the layer with some values replaced, and with different sizes.
func (l *layer) put(change func(*oracle.Spec), values map[string][]float64) *layer {
	return &layer{l.Resized(change, values), l.c}
}

func (l *layer) attentionMistakes(op string) []mistake {
	// pick computes op with a changed attention.
	pick := func(l *layer, change func(*oracle.Attention)) []float64 {
		x, ok := l.Attention()
		if !ok {
			return nil
		}
		if change != nil {
			change(&x)
		}
		out, probs := l.Attend(x)
		if op == "attn_probs" {
			return probs
		}
		return out
	}
	var list []mistake
	of := func(what string, change func(*oracle.Attention)) {
		list = append(list, mistake{what, func() []float64 { return pick(l, change) }})
	}
	scale := func(by float64) func(*oracle.Attention) { return func(x *oracle.Attention) { x.Scale = by } }
	of("no causal mask", func(x *oracle.Attention) { x.Sees = func(int) int { return l.T } })
	of("a mask one too narrow: a token does not see itself", func(x *oracle.Attention) { x.Sees = func(i int) int { return max(1, i) } })
	l.bounded(of)
	of("scores not scaled", scale(1))
	plain := 1 / math.Sqrt(float64(l.QKDim))
	of("scores scaled by 1/sqrt(head size) alone", scale(plain))
	if math.Abs(l.Scale/plain-1) > 1e-6 {
		of("scores scaled by mscale once, not by its square", scale(math.Sqrt(l.Scale*plain)))
	}
	if l.KVHeads > 0 {
		if !l.Borrows {
			list = append(list, mistake{"keys and values swapped", func() []float64 {
				return pick(l.put(nil, map[string][]float64{"q_pe": l.Get("q_pe"), "k_pe": l.Get("v"), "v": l.Get("k_pe")}), nil)
			}})
		}
		of("query heads dealt to key heads in turn (head h reads h % key heads)", func(x *oracle.Attention) { x.Key = func(h int) int { return h % l.KVHeads } })
		of("every query head reads key head 0", func(x *oracle.Attention) { x.Key = func(int) int { return 0 } })
	} else {
		if l.Nope == l.VDim {
			kv, width := l.Get("kv_b"), l.Nope+l.VDim
			of("keys and values swapped", func(x *oracle.Attention) {
				x.Value = func(k, j int) []float64 { return kv[(j*l.Heads+k)*width:][:l.Nope] }
			})
		}
		of("scores scaled by 1/sqrt of the part without rope", scale(1/math.Sqrt(float64(l.Nope))))
	}
	for _, other := range l.Lenders() {
		what := fmt.Sprintf("keys and values of layer %d, not of layer %d", other, l.KV)
		list = append(list, mistake{what, func() []float64 {
			return pick(&layer{l.Resized(func(s *oracle.Spec) { s.KV = other }, map[string][]float64{"q_pe": l.Get("q_pe")}), l.c}, nil)
		}})
	}
	if l.Borrows { // another layer has the mistakes of keys
		return list
	}
	// Queries and keys alike, which no operator before shows by itself.
	for _, t := range l.turns() {
		list = append(list, mistake{t.what, func() []float64 {
			return pick(l.put(nil, map[string][]float64{"q_pe": l.turned("q_pe", t.r), "k_pe": l.turned("k_pe", t.r)}), nil)
		}})
	}
	for _, s := range l.splits() {
		list = append(list, mistake{s.what, func() []float64 {
			o := l.put(s.change, map[string][]float64{"q": l.Get("q"), "k": l.Get("k"), "v": l.Get("v")})
			return pick(l.put(s.change, map[string][]float64{"v": l.Get("v"), "q_pe": o.Define("q_pe"), "k_pe": o.Define("k_pe")}), nil)
		}})
	}
	return list
}

// bounded adds the mistakes in a window, in what an indexer chooses, and in sinks.
func (l *layer) bounded(of func(what string, change func(*oracle.Attention))) {
	if l.Window > 0 {
		first := func(window int) func(*oracle.Attention) {
			return func(x *oracle.Attention) { x.First = func(i int) int { return min(i, max(0, i+1-window)) } }
		}
		of("the sliding window missing", first(l.T))
		of("a sliding window one too long: a token is not counted itself", first(l.Window+1))
		of("a sliding window one too short", first(l.Window-1))
	}
	if l.Indexer.TopK > 0 {
		of("all tokens attended to, not the chosen ones", func(x *oracle.Attention) { x.Chosen = nil })
		if r := l.Indexer.Pool; r > 0 {
			with := func(more func(i, j int) bool) func(*oracle.Attention) {
				return func(x *oracle.Attention) {
					chosen := x.Chosen
					x.Chosen = func(h, i, j int) bool { return more(i, j) || chosen(h, i, j) }
				}
			}
			of("the pool that a token completes always attended to, not only when chosen", with(func(i, j int) bool { return j/r == i/r }))
			of("the tokens of the open pool left out, but for the token itself", func(x *oracle.Attention) {
				chosen := x.Chosen
				x.Chosen = func(h, i, j int) bool { return i == j || j/r < (i+1)/r && chosen(h, i, j) }
			})
		}
	}
	if l.Blocks.Chooses() {
		l.blockBounds(of)
	}
	if l.Sinks {
		of("the sinks missing", func(x *oracle.Attention) { x.Sink = nil })
		of("sinks scaled as the scores", func(x *oracle.Attention) {
			sink := x.Sink
			x.Sink = func(h int) float64 { return x.Scale * sink(h) }
		})
	}
}
