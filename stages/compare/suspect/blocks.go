package suspect

import (
	"slices"

	"krater/stages/oracle"
)

// blockMistakes returns the mistakes in an index over blocks; nil for other operators.
func (l *layer) blockMistakes(op string) []mistake {
	x := l.Blocks
	switch op {
	case "indexer_query":
		return l.blockTurns(func() []float64 { return l.IndexNormed("index_q_norm", l.IndexQueries()) })
	case "indexer_keys":
		return l.blockTurns(func() []float64 { return l.IndexNormed("index_k_norm", l.Get("index_k")) })
	case "indexer_block_keys":
		raw := func() []float64 { return l.Get("indexer_key_raw") }
		normed := func(x []float64) []float64 { return l.IndexNormed("index_k_norm", x) }
		return []mistake{
			{"index keys normed before the mean of a block, not after", func() []float64 { return l.RotatedIndex(l.IndexMean(normed(raw())), x.Block, 0) }},
			{"index keys normed and rotated before the mean of a block", func() []float64 { return l.IndexMean(l.RotatedIndex(normed(raw()), 1, 0)) }},
			{"keys of blocks rotated to the position of the last token", func() []float64 { return l.RotatedIndex(normed(l.IndexMean(raw())), x.Block, x.Block-1) }},
			{"keys of blocks not rotated", func() []float64 { return normed(l.IndexMean(raw())) }},
			{"keys of blocks not normed", func() []float64 { return l.RotatedIndex(l.IndexMean(raw()), x.Block, 0) }},
		}
	case "indexer_selected":
		if x.Local == 0 {
			return nil
		}
		scores := func() []float64 { return l.Get("indexer_scores") }
		return []mistake{
			{"a token's own block not always chosen", func() []float64 { return l.LocalSelected(scores(), 0, true) }},
			{"a token's own block chosen on top of the best", func() []float64 { return l.LocalSelected(scores(), x.Local, false) }},
			{"one choice for all heads", func() []float64 { return l.ofHead(l.Get(op), func(int) int { return 0 }) }},
			{"the lowest scores", func() []float64 { return l.LocalSelected(scaled(scores(), -1), x.Local, true) }},
		}
	}
	return nil
}

// blockTurns are wrong rotations of index heads, and norms by other weights.
func (l *layer) blockTurns(normed func() []float64) []mistake {
	var list []mistake
	for _, t := range l.indexTurns() {
		list = append(list, mistake{t.what, func() []float64 { return l.turnedHeads(normed(), l.Blocks.Dim, t.r) }})
	}
	return list
}

// ofHead gives each head of an index what another has chosen, [T, heads, n].
func (l *layer) ofHead(chosen []float64, head func(h int) int) []float64 {
	heads := l.Blocks.Heads
	n := len(chosen) / max(1, l.T*heads)
	out := make([]float64, 0, len(chosen))
	for row := range l.T * heads {
		out = append(out, chosen[(row/heads*heads+head(row%heads))*n:][:n]...)
	}
	return out
}

// blockBounds adds the mistakes in attending to the blocks that an index chooses.
func (l *layer) blockBounds(of func(what string, change func(*oracle.Attention))) {
	b := l.Blocks
	of("all tokens attended to, not the chosen ones", func(x *oracle.Attention) { x.Chosen = nil })
	if b.Local == 0 {
		of("the block that a token completes always attended to", func(x *oracle.Attention) {
			right := x.Chosen
			x.Chosen = func(h, i, j int) bool { return i/b.Block == j/b.Block || right(h, i, j) }
		})
		of("the tokens behind the last whole block left out, but for the token itself", func(x *oracle.Attention) {
			right := x.Chosen
			x.Chosen = func(h, i, j int) bool { return i == j || j/b.Block < (i+1)/b.Block && right(h, i, j) }
		})
		return
	}
	// sees attends to the blocks of a head's list, [T, heads, n].
	sees := func(chosen []float64, head func(h int) int) func(*oracle.Attention) {
		n := len(chosen) / max(1, l.T*b.Heads)
		return func(x *oracle.Attention) {
			x.Chosen = func(h, i, j int) bool { return slices.Contains(chosen[(i*b.Heads+head(h))*n:][:n], float64(j/b.Block)) }
		}
	}
	own := func(h int) int { return h * b.Heads / l.Heads }
	scores := l.Get("indexer_scores")
	of("a token's own block not always chosen", sees(l.LocalSelected(scores, 0, true), own))
	of("a token's own block chosen on top of the best", sees(l.LocalSelected(scores, b.Local, false), own))
	of("one choice for all heads", sees(l.Get("indexer_selected"), func(int) int { return 0 }))
	of("choices dealt to query heads in turn (head h reads h % choices)", sees(l.Get("indexer_selected"), func(h int) int { return h % b.Heads }))
}
