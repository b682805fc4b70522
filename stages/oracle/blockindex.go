package oracle

import (
	"cmp"
	"math"
	"slices"
)

// indexed are the operators of an index over blocks (model.BlockIndex).
func (l *Layer) indexed(op string) ([]float64, bool) {
	x := l.Blocks
	switch op {
	case "indexer_query":
		return Rotate(l.IndexNormed("index_q_norm", l.IndexQueries()), l.T, x.Dim, &l.Rope, func(row int) float64 { return float64(row) }), true
	case "indexer_keys":
		return l.RotatedIndex(l.IndexNormed("index_k_norm", l.Get("index_k")), 1, 0), true
	case "indexer_key_raw":
		return part(l.Get("index_qk"), (x.Heads+1)*x.Dim, x.Heads*x.Dim, x.Dim), true
	case "indexer_block_keys":
		return l.RotatedIndex(l.IndexNormed("index_k_norm", l.IndexMean(l.Get("indexer_key_raw"))), x.Block, 0), true
	case "indexer_scores":
		if x.Local > 0 {
			return l.LocalScores(), true
		}
		return l.blockScores(), true
	case "indexer_selected":
		if x.Local > 0 {
			return l.LocalSelected(l.Get("indexer_scores"), x.Local, true), true
		}
		return l.blocksSelected(), true
	}
	return nil, false
}

// IndexQueries returns the queries of an index over blocks before their norm.
func (l *Layer) IndexQueries() []float64 {
	x := l.Blocks
	if x.Local > 0 {
		return l.Get("index_q")
	}
	return part(l.Get("index_qk"), (x.Heads+1)*x.Dim, 0, x.Heads*x.Dim)
}

// IndexMean returns the means of x [T, Dim] over the complete blocks.
func (l *Layer) IndexMean(x []float64) []float64 {
	b := l.Blocks
	out := make([]float64, l.T/b.Block*b.Dim)
	for i := range out {
		for j := range b.Block {
			out[i] += x[(i/b.Dim*b.Block+j)*b.Dim+i%b.Dim] / float64(b.Block)
		}
	}
	return out
}

// RotatedIndex rotates index keys x, one for every step tokens, the first of which is at position first.
func (l *Layer) RotatedIndex(x []float64, step, first int) []float64 {
	d := l.Blocks.Dim
	return Rotate(x, len(x)/d, d, &l.Rope, func(row int) float64 { return float64(row*step + first) })
}

// IndexNormed norms the queries or keys of an index over blocks.
func (l *Layer) IndexNormed(role string, x []float64) []float64 {
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

// LocalScores returns the scores of blocks where heads choose for themselves, [T, heads, blocks]: the largest product of a
// token that the row sees. The last block may be short. It is -Inf where a token sees none of a block.
func (l *Layer) LocalScores() []float64 {
	x, q, keys, blocks := l.Blocks, l.Get("indexer_query"), l.Get("indexer_keys"), l.blockCount()
	if len(q) != l.T*x.Heads*x.Dim || len(keys) != l.T*x.Dim {
		return nil
	}
	out := slices.Repeat([]float64{math.Inf(-1)}, l.T*x.Heads*blocks)
	for row := range l.T * x.Heads {
		for j := range row/x.Heads + 1 {
			at := &out[row*blocks+j/x.Block]
			*at = max(*at, Dot(q[row*x.Dim:][:x.Dim], keys[j*x.Dim:]))
		}
	}
	return out
}

// blockCount returns the number of blocks of the text, the last of which may be short.
func (l *Layer) blockCount() int { return (l.T + l.Blocks.Block - 1) / l.Blocks.Block }

// LocalSelected returns the blocks that each head of each token chooses by scores, rising, with -1 behind them, [T, heads, Chosen]. The
// last local ones up to the token's own are chosen whatever their scores; with counted they count as chosen, otherwise they come on
// top, and the width is Chosen + local.
func (l *Layer) LocalSelected(scores []float64, local int, counted bool) (out []float64) {
	x, blocks, width := l.Blocks, l.blockCount(), l.Blocks.Chosen
	if len(scores) != l.T*x.Heads*blocks {
		return nil
	}
	if !counted {
		width += local
	}
	for row := range l.T * x.Heads {
		own := row / x.Heads / x.Block
		first := max(0, own+1-local)
		list := make([]int, first)
		for i := range list {
			list[i] = i
		}
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(scores[row*blocks+b], scores[row*blocks+a]) })
		list = list[:min(first, width-local)]
		for b := first; b <= own; b++ {
			list = append(list, b)
		}
		slices.Sort(list)
		for i := range width {
			if i < len(list) {
				out = append(out, float64(list[i]))
			} else {
				out = append(out, -1)
			}
		}
	}
	return out
}

// blocksChosen tells which tokens a token attends to of those before it, for a query head.
func (l *Layer) blocksChosen() func(h, i, j int) bool {
	x, selected := l.Blocks, l.Get("indexer_selected")
	if x.Local > 0 {
		width := len(selected) / max(1, l.T*x.Heads)
		return func(h, i, j int) bool {
			return slices.Contains(selected[(i*x.Heads+h*x.Heads/l.Heads)*width:][:width], float64(j/x.Block))
		}
	}
	return func(_, i, j int) bool {
		block := j / x.Block
		return block >= (i+1)/x.Block || slices.Contains(selected[i*x.Chosen:][:x.Chosen], float64(block))
	}
}
