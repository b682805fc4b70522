package ref

import (
	"cmp"
	"math"
	"slices"

	"krater/kernels/device"
)

// selectLocal is SelectBlocks where heads choose for themselves.
func selectLocal(chosen []int32, q, keys []float32, spans []device.Span, p device.BlockIndex) {
	for _, s := range spans {
		for i := range s.Len * p.Heads {
			row, h, pos := s.Row+i/p.Heads, i%p.Heads, s.Pos+i/p.Heads
			own := pos / p.Block
			first := max(0, own+1-p.Local) // of the blocks that are chosen whatever their scores
			scores, order := make([]float64, first), make([]int, first)
			for b := range scores {
				order[b], scores[b] = b, math.Inf(-1)
				for t := b * p.Block; t < (b+1)*p.Block; t++ {
					slot := int(s.Blocks[t/p.BlockTokens])*p.BlockTokens + t%p.BlockTokens
					scores[b] = max(scores[b], dot(q[(row*p.Heads+h)*p.Dim:][:p.Dim], keys[slot*p.Dim:]))
				}
				if scores[b] != scores[b] {
					scores[b] = math.Inf(-1)
				}
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
			order = order[:min(first, p.Chosen-p.Local)]
			for b := first; b <= own; b++ {
				order = append(order, b)
			}
			putBlocks(chosen[row*p.Width()+h*p.Positions():][:p.Positions()], order, p.Block, pos)
		}
	}
}

// putBlocks writes the positions up to pos of blocks, rising, and -1 behind them.
func putBlocks(to []int32, blocks []int, block, pos int) {
	slices.Sort(blocks)
	n := 0
	for _, b := range blocks {
		for p := b * block; p < (b+1)*block && p <= pos; p++ {
			to[n] = int32(p)
			n++
		}
	}
	for ; n < len(to); n++ {
		to[n] = -1
	}
}

// SparseGQA is GQA in which each row sees the positions of its row of chosen [T, n], up to the first -1 of a list: key
// head h those of list p.List(h), of n / Lists positions.
func SparseGQA(out, q, cache []float32, chosen []int32, n int, spans []device.Span, p device.GQA) {
	lists := max(1, p.Lists)
	group, heads, width := p.Heads/p.KVHeads, p.KVHeads/lists, p.Width()
	for _, s := range spans {
		for r := range s.Len {
			for list := range lists {
				var rows []float32
				seen := 0
				for _, pos := range chosen[(s.Row+r)*n+list*n/lists:][:n/lists] {
					if pos < 0 {
						break
					}
					slot := int(s.Blocks[int(pos)/p.BlockTokens])*p.BlockTokens + int(pos)%p.BlockTokens
					for half := range 2 { // keys, then values
						rows = append(rows, cache[slot*width+(half*p.KVHeads+list*heads)*p.HeadDim:][:heads*p.HeadDim]...)
					}
					seen++
				}
				one := device.GQA{Heads: heads * group, KVHeads: heads, HeadDim: p.HeadDim, Scale: p.Scale, BlockTokens: seen}
				at, n := ((s.Row+r)*lists+list)*one.Heads*p.HeadDim, one.Heads*p.HeadDim
				GQA(out[at:at+n], q[at:at+n], rows, nil, []device.Span{{Len: 1, Pos: seen - 1, Blocks: []int32{0}}}, one)
			}
		}
	}
}
