package ref

import (
	"cmp"
	"math"
	"slices"

	"krater/kernels/device"
)

// LayerNorm is (x - mean) / sqrt(variance + eps) * w + b over rows of x [T, len(w)].
func LayerNorm(out, x, w, b []float32, eps float32) {
	n := len(w)
	for at := 0; at < len(x); at += n {
		var mean, variance float64
		for _, v := range x[at : at+n] {
			mean += float64(v) / float64(n)
		}
		for _, v := range x[at : at+n] {
			variance += (float64(v) - mean) * (float64(v) - mean) / float64(n)
		}
		for i, v := range x[at : at+n] {
			out[at+i] = float32((float64(v)-mean)/math.Sqrt(variance+float64(eps))*float64(w[i]) + float64(b[i]))
		}
	}
}

// Select is the choice of an indexer (device.Index) by its definition. q is [T, Heads*Dim], weights
// [T, Heads], keys [slots, Dim] as kept: see WidenF8 and WidenI8; chosen [T, TopK].
func Select(chosen []int32, q, weights, keys []float32, spans []device.Span, p device.Index) {
	for _, s := range spans {
		for r := range s.Len {
			row := s.Row + r
			scores := indexScores(q[row*p.Heads*p.Dim:], weights[row*p.Heads:], keys, s, s.Pos+r+1, p)
			order := make([]int32, len(scores))
			for i := range order {
				order[i] = int32(i)
			}
			slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) })
			order = order[:min(p.TopK, len(order))]
			slices.Sort(order)
			to := chosen[row*p.TopK:][:p.TopK]
			for i := range to[copy(to, order):] {
				to[len(order)+i] = -1
			}
		}
	}
}

// indexScores are the scores of the first n positions of a span for one row.
func indexScores(q, weights, keys []float32, s device.Span, n int, p device.Index) []float64 {
	scores := make([]float64, n)
	for j := range scores {
		slot := int(s.Blocks[j/p.BlockTokens])*p.BlockTokens + j%p.BlockTokens
		key := keys[slot*p.Dim:][:p.Dim]
		for h := range p.Heads {
			scores[j] += float64(weights[h]) * max(0, dot(q[h*p.Dim:][:p.Dim], key))
		}
		if scores[j] != scores[j] {
			scores[j] = math.Inf(-1)
		}
	}
	return scores
}

// SparseRows calls f for every row of spans with a span of that row alone and the cache, of rows of width
// values, in which it sees all positions: cache itself where the row may see no more than topK positions, else
// a cache of the positions that chosen [T, topK] has for it.
func SparseRows(cache []float32, chosen []int32, topK int, spans []device.Span, width, blockTokens int, f func(cache []float32, s device.Span, all bool)) {
	for _, s := range spans {
		for r := range s.Len {
			one := device.Span{Row: s.Row + r, Len: 1, Pos: s.Pos + r, Slot: s.Slot, Blocks: s.Blocks}
			if one.Pos < topK {
				f(cache, one, true)
				continue
			}
			var rows []float32
			for _, c := range chosen[one.Row*topK:][:topK] {
				slot := int(s.Blocks[int(c)/blockTokens])*blockTokens + int(c)%blockTokens
				rows = append(rows, cache[slot*width:][:width]...)
			}
			one.Pos, one.Blocks = topK-1, nil
			for b := range (topK + blockTokens - 1) / blockTokens {
				one.Blocks = append(one.Blocks, int32(b))
			}
			f(rows, one, false)
		}
	}
}

// SparseMLA is MLA of the rows that SparseRows gives.
func SparseMLA(out, q, cache, kvB []float32, chosen []int32, topK int, spans []device.Span, p device.MLA) {
	SparseRows(cache, chosen, topK, spans, p.Rank+p.Rope, p.BlockTokens, func(cache []float32, s device.Span, _ bool) {
		MLA(out, q, cache, kvB, []device.Span{s}, p)
	})
}
