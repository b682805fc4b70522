package oracle

import (
	"cmp"
	"math"
	"slices"
)

// IndexScore makes the score of a token of the products of its key with the index heads' queries, scaled.
type IndexScore func(products, weights []float64) float64

// Weighted is the score of DeepSeek-V3.2 (arXiv 2512.02556, section 2.1).
func Weighted(products, weights []float64) (sum float64) {
	for h, v := range products {
		sum += weights[h] * max(0, v)
	}
	return sum
}

func (latent) define(l *Layer, op string) ([]float64, bool) {
	switch op {
	case "q_resid":
		return RMSNorm(l.Get("q_a"), l.Weight(l.Tensor("q_a_norm"), l.QRank), l.LatentEps), true
	case "indexer_query":
		return l.IndexRotated(l.Get("index_q"), l.Indexer.Interleaved), true
	case "indexer_keys":
		return l.IndexRotated(l.IndexNorm(), l.Indexer.Interleaved), true
	case "indexer_block_keys":
		return l.poolKeys(), true
	case "indexer_weights":
		return scaledBy(l.Get("index_weights"), 1/math.Sqrt(float64(l.Indexer.Heads))), true
	case "indexer_scores":
		return l.IndexScores(Weighted), true
	case "selected":
		if l.Indexer.Shared {
			return l.given(l.Index-1, "selected"), true
		}
		return l.Choose(l.Get("indexer_scores"), l.Indexer.TopK), true
	}
	return nil, false
}

// indexProduct describes the products of an indexer.
func (l *Layer) indexProduct(op string) (Product, bool) {
	p := Product{In: l.of("input_norm"), Role: op, Heads: 1, Rope: -1}
	switch op {
	case "index_q":
		p.In, p.Out = l.of("q_resid"), l.Indexer.Heads*l.Indexer.Dim
	case "index_k":
		p.Out = l.Indexer.Dim
	case "index_weights":
		p.Out = l.Indexer.Heads
	case "indexer_key_gate":
		p.Role, p.Out = "index_gate", l.Indexer.Dim
	default:
		return p, false
	}
	return p, true
}

// IndexNorm returns the keys of the indexer after their LayerNorm.
func (l *Layer) IndexNorm() []float64 {
	d := l.Indexer.Dim
	return LayerNorm(l.Get("index_k"), l.Weight(l.Tensor("index_norm"), d), l.Weight(l.Tensor("index_norm_bias"), d), float64(l.Indexer.NormEps))
}

// IndexRotated rotates the first values of index heads, in pairs of neighbours or of halves.
func (l *Layer) IndexRotated(x []float64, interleaved bool) []float64 {
	rope := l.Rope
	rope.Interleaved = interleaved
	return Rotate(x, l.T, l.Indexer.Dim, &rope, func(row int) float64 { return float64(row) })
}

// IndexScores returns the scores [T, n] of the tokens, or of the complete pools, that each token sees, 0 of the others.
func (l *Layer) IndexScores(score IndexScore) []float64 {
	from := "indexer_keys"
	if l.Indexer.Pool > 0 {
		from = "indexer_block_keys"
	}
	q, keys, weights := l.Get("indexer_query"), l.Get(from), l.Get("indexer_weights")
	heads, d, n := l.Indexer.Heads, l.Indexer.Dim, l.entries()
	if len(q) != l.T*heads*d || len(keys) != n*d || len(weights) != l.T*heads {
		return nil
	}
	out, products := make([]float64, l.T*n), make([]float64, heads)
	for i := range l.T {
		for j := range l.Indexer.Sizes(1).Sees(i) {
			for h := range heads {
				products[h] = Dot(q[(i*heads+h)*d:][:d], keys[j*d:]) / math.Sqrt(float64(d))
			}
			out[i*n+j] = score(products, weights[i*heads:][:heads])
		}
	}
	return out
}

// entries returns the number of tokens, or of complete pools, of the text.
func (l *Layer) entries() int { return l.Indexer.Sizes(1).Sees(l.T - 1) }

// poolKeys returns the keys of the complete pools: of each channel the sum of the tokens' keys by the softmax of their gates.
func (l *Layer) poolKeys() []float64 {
	keys, gates, d, r := l.Get("indexer_keys"), l.Get("indexer_key_gate"), l.Indexer.Dim, l.Indexer.Pool
	bias := l.Weight(l.Tensor("index_ape"), r*d)
	if bias == nil || len(keys) != l.T*d || len(gates) != len(keys) {
		return nil
	}
	out := make([]float64, l.entries()*d)
	for i := range out {
		weights, first := make([]float64, r), i/d*r
		for j := range weights {
			weights[j] = gates[(first+j)*d+i%d] + float64(bias[j*d+i%d])
		}
		softmax(weights)
		for j, w := range weights {
			out[i] += w * keys[(first+j)*d+i%d]
		}
	}
	return out
}

// Choose returns the topK tokens, or pools, with the best scores [T, n] of those that each token sees, rising, with -1 behind
// them where there are fewer; of equal ones the first.
func (l *Layer) Choose(scores []float64, topK int) []float64 {
	n := l.entries()
	if len(scores) != l.T*n {
		return nil
	}
	out := make([]float64, 0, l.T*topK)
	for i := range l.T {
		row, order := scores[i*n:], make([]int, l.Indexer.Sizes(1).Sees(i))
		for j := range order {
			order[j] = j
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
		order = order[:min(topK, len(order))]
		slices.Sort(order)
		for _, j := range order {
			out = append(out, float64(j))
		}
		for range topK - len(order) {
			out = append(out, -1)
		}
	}
	return out
}

// chosen reports which tokens a token attends to, by "selected"; nil: all that it sees.
func (l *Layer) chosen() (sees func(h, i, j int) bool, ok bool) {
	if l.Indexer.TopK == 0 {
		return nil, true
	}
	selected, k := l.Get("selected"), l.Indexer.TopK
	if len(selected) != l.T*k {
		return nil, false
	}
	pool := max(1, l.Indexer.Pool)
	return func(_, i, j int) bool {
		return j/pool >= (i+1)/pool || slices.Contains(selected[i*k:][:k], float64(j/pool))
	}, true
}

func scaledBy(x []float64, by float64) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] *= by
	}
	return out
}
