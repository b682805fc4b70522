package oracle

import "math"

// ngrams are the operators of a layer's table of n-grams (model.NGrams).
func (l *Layer) ngrams(op string) ([]float64, bool) {
	n, h := l.Streams.Count, l.Config.Hidden
	switch op {
	case "ngram_rows":
		return l.NGramRows(NGramReading{End: l.NGrams.Sizes.EOS}), true
	case "ngram_embed":
		return l.ngramEmbed(), true
	case "ple_value":
		return Mul(l.Get("ngram_embed"), l.Weight(l.Tensor("ngram_value"), 0), l.T), true
	case "ple_gate":
		key := l.streamNorm("ngram_norm_key", Mul(l.Get("ngram_embed"), l.Weight(l.Tensor("ngram_key"), 0), l.T))
		query := l.streamNorm("ngram_norm_query", l.In())
		if len(key) != len(query) {
			return nil, true
		}
		out := make([]float64, l.T*n)
		for i := range out {
			dot := Dot(key[i*h:][:h], query[i*h:]) / math.Sqrt(float64(h))
			out[i] = math.Copysign(math.Sqrt(max(math.Abs(dot), 1e-6)), dot)
			if dot == 0 {
				out[i] = 0
			}
		}
		return out, true
	case "ple_conv_in":
		return l.streamNorm("ngram_norm_conv", l.ngramValues()), true
	case "ple_conv_state":
		kept := make([]float64, (l.NGrams.Conv().Reach()-1)*n*h) // zeros before the start
		x := append(kept, l.Get("ple_conv_in")...)
		return x[len(x)-len(kept):], true
	case "ple_out":
		return l.NGramOut(l.NGrams.Sizes.Order), true
	}
	return nil, false
}

// NGramReading is how tokens become rows of the table.
type NGramReading struct {
	End    int32 // what stands for the tokens behind the end of a text, and before the start
	Across bool  // a text does not end: n-grams run across its end
	Alike  bool  // every head has as many rows as the first
}

// NGramRows returns the rows of the table that each token reads, [T, heads].
func (l *Layer) NGramRows(r NGramReading) (out []float64) {
	p := l.NGrams.Sizes
	for t := range l.T {
		tokens, ended := make([]uint64, p.Order), false
		for back := range tokens {
			tokens[back] = uint64(r.End)
			if ended = ended || back > 0 && (back > t || l.IDs[t-back] == p.EOS && !r.Across); !ended {
				tokens[back] = uint64(l.IDs[t-back])
			}
		}
		for h := range p.Heads() {
			mix := uint64(0)
			for back := range 2 + h/p.PerOrder {
				mix ^= tokens[back] * p.Multipliers[back]
			}
			if r.Alike {
				out = append(out, float64(mix%p.Sizes[0]+uint64(h)*p.Sizes[0]))
				continue
			}
			out = append(out, float64(mix%p.Sizes[h]+p.Offsets[h]))
		}
	}
	return out
}

// ngramEmbed returns those rows side by side, [T, heads*dim].
func (l *Layer) ngramEmbed() (out []float64) {
	g := l.NGrams
	dim, per := g.Sizes.Dim, g.Rows/g.Shards
	shards := make([][]float32, g.Shards)
	for i := range shards {
		if shards[i] = l.Weight(l.Config.Layers[l.Index].TableName(i), per*dim); shards[i] == nil {
			return nil
		}
	}
	for _, row := range l.Get("ngram_rows") {
		r := int(row)
		out = append(out, Widen(shards[r/per][r%per*dim:][:dim])...)
	}
	return out
}

// ngramValues returns the values that each stream gets from the table, [T, n*H].
func (l *Layer) ngramValues() []float64 {
	gate := append([]float64(nil), l.Get("ple_gate")...)
	for i, v := range gate {
		gate[i] = sigmoid(v)
	}
	return l.spread(gate, l.Get("ple_value"))
}

// NGramOut is added to the streams, [T, n*H]: values of the table, and silu of their causal convolution, whose taps lie step tokens
// apart.
func (l *Layer) NGramOut(step int) []float64 {
	return Sum(l.ngramValues(), l.ngramConvolution(l.Get("ple_conv_in"), step))
}

func (l *Layer) ngramConvolution(x []float64, step int) []float64 {
	g, n := l.NGrams, l.Streams.Width(l.Config.Hidden)
	w, out := l.Weight(l.Tensor("ngram_conv"), n*g.Taps), make([]float64, len(x))
	if w == nil {
		return nil
	}
	for i := range out {
		t, c := i/n, i%n
		for back := 0; back < g.Taps && back*step <= t; back++ {
			out[i] += float64(w[c*g.Taps+g.Taps-1-back]) * x[(t-back*step)*n+c]
		}
		out[i] = Silu(out[i])
	}
	return out
}
