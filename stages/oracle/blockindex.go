package oracle

import (
	"cmp"
	"math"
	"slices"
)

// indexed are the operators of an index over blocks (model.BlockIndex).
func (l *Layer) indexed(op string) ([]float64, bool) {
	x, width := l.Blocks, (l.Blocks.Heads+1)*l.Blocks.Dim
	switch op {
	case "indexer_query":
		q := part(l.Get("index_qk"), width, 0, x.Heads*x.Dim)
		return Rotate(l.indexNorm("index_q_norm", q), l.T, x.Dim, &l.Rope, func(row int) float64 { return float64(row) }), true
	case "indexer_key_raw":
		return part(l.Get("index_qk"), width, x.Heads*x.Dim, x.Dim), true
	case "indexer_block_keys":
		raw, keys := l.Get("indexer_key_raw"), make([]float64, l.T/x.Block*x.Dim)
		for i := range keys {
			for j := range x.Block {
				keys[i] += raw[(i/x.Dim*x.Block+j)*x.Dim+i%x.Dim] / float64(x.Block)
			}
		}
		return Rotate(l.indexNorm("index_k_norm", keys), l.T/x.Block, x.Dim, &l.Rope, func(row int) float64 { return float64(row * x.Block) }), true
	case "indexer_scores":
		return l.blockScores(), true
	case "indexer_selected":
		return l.blocksSelected(), true
	}
	return nil, false
}

func (l *Layer) indexNorm(role string, x []float64) []float64 {
	return RMSNorm(x, l.NormWeight(Norm{Role: role, Width: l.Blocks.Dim}), float64(l.Blocks.NormEps))
}

// blockScores returns the scores of the complete blocks, [T, blocks]; 0 where a token does not see one.
func (l *Layer) blockScores() []float64 {
	x, q, keys, blocks := l.Blocks, l.Get("indexer_query"), l.Get("indexer_block_keys"), l.T/l.Blocks.Block
	out := make([]float64, l.T*blocks)
	for t := range l.T {
		for b := range (t + 1) / x.Block {
			for h := range x.Heads {
				out[t*blocks+b] += max(0, Dot(q[(t*x.Heads+h)*x.Dim:][:x.Dim], keys[b*x.Dim:])) / math.Sqrt(float64(x.Dim))
			}
		}
	}
	return out
}

// blocksSelected returns the chosen blocks of each token, rising, with -1 behind them, [T, Chosen].
func (l *Layer) blocksSelected() (out []float64) {
	x, scores, blocks := l.Blocks, l.Get("indexer_scores"), l.T/l.Blocks.Block
	for t := range l.T {
		list := make([]int, (t+1)/x.Block)
		for i := range list {
			list[i] = i
		}
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(scores[t*blocks+b], scores[t*blocks+a]) })
		list = list[:min(len(list), x.Chosen)]
		slices.Sort(list)
		for i := range x.Chosen {
			if i < len(list) {
				out = append(out, float64(list[i]))
			} else {
				out = append(out, -1)
			}
		}
	}
	return out
}

// blocksChosen tells which tokens a token attends to of those before it.
func (l *Layer) blocksChosen() func(i, j int) bool {
	x, selected := l.Blocks, l.Get("indexer_selected")
	return func(i, j int) bool {
		block := j / x.Block
		return block >= (i+1)/x.Block || slices.Contains(selected[i*x.Chosen:][:x.Chosen], float64(block))
	}
}
