package suspect

import (
	"math"

	"krater/stages/oracle"
)

// indexMistakes returns the mistakes in an indexer (model.Indexer).
func (l *layer) indexMistakes(op string) []mistake {
	switch op {
	case "indexer_query":
		return l.indexRotations(l.Get("index_q"))
	case "indexer_keys":
		return append(l.indexRotations(l.IndexNorm()), l.indexNorms()...)
	case "indexer_block_keys":
		return l.poolKeyMistakes()
	case "indexer_weights":
		n := float64(l.Indexer.Heads)
		return []mistake{
			{"the factor heads^-0.5 missing", func() []float64 { return l.Get("index_weights") }},
			{"a factor of 1/heads, not heads^-0.5", func() []float64 { return scaled(l.Get("index_weights"), 1/n) }},
		}
	case "selected":
		if l.Indexer.Shared {
			return nil // what the layer before chose
		}
		list := l.scoreMistakes()
		for i, m := range list {
			list[i].values = func() []float64 { return l.Choose(m.values(), l.Indexer.TopK) }
		}
		return append(list, l.choiceMistakes()...)
	}
	return l.scoreMistakes()
}

// indexTurns are wrong rotations of index heads.
func (l *layer) indexTurns() []turn {
	if l.RopeDim == 0 && !l.Blocks.Chooses() {
		return nil
	}
	rope, swapped := l.Rope, l.Rope
	if !l.Blocks.Chooses() {
		rope.Interleaved = l.Indexer.Interleaved
	}
	swapped.Interleaved = !rope.Interleaved
	other := "halves"
	if !rope.Interleaved {
		other = "neighbouring values"
	}
	return []turn{
		{"index heads rotated over " + other + " (halves and interleaved pairs swapped)", rotation{rope: swapped}},
		{"the last values of index heads rotated, not the first", rotation{rope: rope, last: true}},
		{"index heads not rotated", rotation{rope: rope, still: true}},
	}
}

// indexRotations returns the mistakes in rotating index heads x.
func (l *layer) indexRotations(x []float64) []mistake {
	var list []mistake
	for _, t := range l.indexTurns() {
		list = append(list, mistake{t.what, func() []float64 { return l.turnedHeads(x, l.Indexer.Dim, t.r) }})
	}
	return list
}

// indexNorms returns the mistakes in the LayerNorm of index keys.
func (l *layer) indexNorms() []mistake {
	x, d, eps := l.Get("index_k"), l.Indexer.Dim, float64(l.Indexer.NormEps)
	w, b := l.Weight(l.Tensor("index_norm"), d), l.Weight(l.Tensor("index_norm_bias"), d)
	rotated := func(x []float64) []float64 { return l.IndexRotated(x, l.Indexer.Interleaved) }
	return []mistake{
		{"RMSNorm in the place of the LayerNorm of index keys", func() []float64 { return rotated(oracle.Sum(oracle.RMSNorm(x, w, eps), b)) }},
		{"the bias of the LayerNorm of index keys missing", func() []float64 { return rotated(oracle.LayerNorm(x, w, make([]float32, d), eps)) }},
		{"index keys not normed", func() []float64 { return rotated(x) }},
	}
}

// scoreMistakes returns the mistakes that change index scores.
func (l *layer) scoreMistakes() []mistake {
	of := func(what string, score oracle.IndexScore) mistake {
		return mistake{what, func() []float64 { return l.IndexScores(score) }}
	}
	list := []mistake{
		of("the ReLU of index scores missing", func(products, weights []float64) (sum float64) {
			for h, v := range products {
				sum += weights[h] * v
			}
			return sum
		}),
		of("the weights of index heads missing", func(products, _ []float64) (sum float64) {
			for _, v := range products {
				sum += max(0, v)
			}
			return sum
		}),
		of("the ReLU after the weights of index heads", func(products, weights []float64) (sum float64) {
			for h, v := range products {
				sum += max(0, weights[h]*v)
			}
			return sum
		}),
	}
	if l.Indexer.Pool > 0 {
		return append(list, l.poolMistakes()...)
	}
	both := func(what string, q, keys func() []float64) {
		list = append(list, mistake{what, func() []float64 {
			values := map[string][]float64{"indexer_query": q(), "indexer_keys": keys(), "indexer_weights": l.Get("indexer_weights")}
			return l.put(nil, values).IndexScores(oracle.Weighted)
		}})
	}
	for _, t := range l.indexTurns() { // queries and keys alike
		both(t.what, func() []float64 { return l.turnedHeads(l.Get("index_q"), l.Indexer.Dim, t.r) },
			func() []float64 { return l.turnedHeads(l.IndexNorm(), l.Indexer.Dim, t.r) })
	}
	for _, m := range l.indexNorms() {
		both(m.what, func() []float64 { return l.Get("indexer_query") }, m.values)
	}
	return list
}

// poolKeyMistakes returns the mistakes in the keys of pools.
func (l *layer) poolKeyMistakes() (list []mistake) {
	d, r := l.Indexer.Dim, l.Indexer.Pool
	of := func(what string, keys, gates []float64) {
		list = append(list, mistake{what, func() []float64 {
			return l.put(nil, map[string][]float64{"indexer_keys": keys, "indexer_key_gate": gates}).Define("indexer_block_keys")
		}})
	}
	keys, gates := l.Get("indexer_keys"), l.Get("indexer_key_gate")
	list = append(list, mistake{"pools averaged evenly, without gates", func() []float64 {
		out := make([]float64, len(keys)/(r*d)*d)
		for i := range out {
			for j := range r {
				out[i] += keys[(i/d*r+j)*d+i%d] / float64(r)
			}
		}
		return out
	}})
	of("the gates of pooled keys missing", keys, make([]float64, len(gates)))
	of("one gate of a token for all channels: that of the first", keys, firstOf(gates, d))
	for _, m := range l.indexNorms() {
		of(m.what, m.values(), gates)
	}
	return list
}

// poolMistakes returns the mistakes in the keys of pools that change index scores.
func (l *layer) poolMistakes() []mistake {
	list := l.poolKeyMistakes()
	for i, m := range list {
		list[i].values = func() []float64 {
			return l.put(nil, map[string][]float64{"indexer_query": l.Get("indexer_query"), "indexer_block_keys": m.values(), "indexer_weights": l.Get("indexer_weights")}).IndexScores(oracle.Weighted)
		}
	}
	return list
}

// choiceMistakes returns the mistakes in choosing by scores that are right.
func (l *layer) choiceMistakes() []mistake {
	scores, k := l.Get("indexer_scores"), l.Indexer.TopK
	changed := func(change func(score float64) float64) func() []float64 {
		return func() []float64 {
			other := append([]float64(nil), scores...)
			for i, v := range other {
				other[i] = change(v)
			}
			return l.Choose(other, k)
		}
	}
	return []mistake{
		{"a score of 0 as the least (it is none where weights are negative)", changed(func(v float64) float64 {
			if v == 0 {
				return math.Inf(-1)
			}
			return v
		})},
		{"the scores that are furthest from 0", changed(math.Abs)},
		{"the lowest scores", changed(func(v float64) float64 { return -v })},
		{"the newest tokens, whatever their scores", func() []float64 {
			newest := make([]float64, len(scores))
			for i := range newest {
				newest[i] = float64(i)
			}
			return l.Choose(newest, k)
		}},
	}
}
