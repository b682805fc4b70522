package suspect

import (
	"strings"

	"krater/stages/oracle"
)

// streamMistakes returns the mistakes around several residual streams, and in a table of n-grams; nil for other operators.
func (l *layer) streamMistakes(op string) []mistake {
	if l.Streams.Mixed() {
		return l.mixedMistakes(op)
	}
	switch op {
	case "input_norm":
		return l.mixMistakes("attn_", l.Entered)
	case "post_norm":
		return l.mixMistakes("mlp_", func() []float64 { return l.Get("streams_mid") })
	case "final_norm":
		ones := make([]float32, l.Config.Hidden)
		for i := range ones {
			ones[i] = 1
		}
		return append(l.mixMistakes("end_", l.In), mistake{"one more RMSNorm behind the mixture of the streams", func() []float64 {
			return oracle.RMSNorm(l.Define(op), ones, float64(l.Config.NormEps))
		}})
	case "attn_hc_inject", "mlp_hc_inject":
		return []mistake{{"the factor 2 of the streams' weights missing", func() []float64 { return scaled(l.Define(op), 0.5) }}}
	case "ngram_rows":
		of := func(what string, r oracle.NGramReading) mistake {
			return mistake{what, func() []float64 { return l.NGramRows(r) }}
		}
		end := l.NGrams.Sizes.EOS
		return []mistake{
			of("n-grams that run across the end of a text", oracle.NGramReading{End: end, Across: true}),
			of("token 0 in the place of what lies before the start or the end of a text", oracle.NGramReading{}),
			of("as many rows of the table for each head as for the first", oracle.NGramReading{End: end, Alike: true}),
		}
	case "ple_gate":
		return []mistake{{"the signed square root of the products missing", func() []float64 {
			gates := l.Define(op)
			for i, v := range gates {
				gates[i] = v * max(v, -v)
			}
			return gates
		}}}
	case "ple_out":
		return []mistake{
			{"taps of the convolution that follow one another", func() []float64 { return l.NGramOut(1) }},
			{"the convolution missing", func() []float64 { return l.NGramOut(len(l.IDs) + 1) }},
		}
	}
	return nil
}

// mixedMistakes returns the mistakes around residual streams that a matrix mixes; nil for other operators.
func (l *layer) mixedMistakes(op string) []mistake {
	switch op {
	case "attn_hc_post", "mlp_hc_post":
		return []mistake{{"the factor 2 of the streams' weights missing", func() []float64 { return scaled(l.Define(op), 0.5) }}}
	case "attn_hc_comb", "mlp_hc_comb":
		n := l.Streams.Iterations
		of := func(what string, b oracle.Balance) mistake {
			return mistake{what, func() []float64 { return l.MixMatrix(strings.TrimSuffix(op, "hc_comb"), b) }}
		}
		return []mistake{
			of("the matrix of the streams divided by its rows first, not by its columns", oracle.Balance{Iterations: n, RowsFirst: true}),
			of("the matrix of the streams divided by its columns once alone (hc_sinkhorn_iters 1)", oracle.Balance{Iterations: 1}),
			of("one iteration too many for the matrix of the streams", oracle.Balance{Iterations: n + 1}),
			of("one iteration too few for the matrix of the streams", oracle.Balance{Iterations: n - 1}),
		}
	case "streams_mid", "layer_out":
		return []mistake{{"the matrix of the streams transposed", func() []float64 { return l.Mingled(op, true) }}}
	}
	return nil
}

// mixMistakes returns the mistakes in making the input of a block of streams.
func (l *layer) mixMistakes(prefix string, streams func() []float64) []mistake {
	of := func(what string, m oracle.Mix) mistake {
		return mistake{what, func() []float64 { return l.Collapse(prefix, streams(), m) }}
	}
	return []mistake{
		of("norms of the streams by w, not by 1 + w", oracle.Mix{Plain: true}),
		of("streams normed as one row, not each by itself", oracle.Mix{Whole: true}),
		of("streams summed, not averaged", oracle.Mix{Sum: true}),
		of("weights of the raw streams, not of the normed ones", oracle.Mix{Raw: true}),
	}
}
