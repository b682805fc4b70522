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

// PoolKeys makes the keys of pools by their definition (device.Index). x is [T, 2*Dim], bias [Pool, Dim], out [T, Dim],
// tail [slots*Pool, 2*Dim], which gets the new rows.
func PoolKeys(out, x, bias, tail []float32, spans []device.Span, p device.Index) {
	d := p.Dim
	for _, s := range spans {
		kept := tail[s.Slot*p.Pool*2*d:]
		for r := range s.Len {
			pos, to := s.Pos+r, out[(s.Row+r)*d:][:d]
			copy(kept[pos%p.Pool*2*d:][:2*d], x[(s.Row+r)*2*d:])
			clear(to)
			if (pos+1)%p.Pool != 0 {
				continue
			}
			for c := range to {
				sum, weighed := 0.0, 0.0
				top := math.Inf(-1)
				for j := range p.Pool {
					top = max(top, float64(kept[j*2*d+d+c])+float64(bias[j*d+c]))
				}
				for j := range p.Pool {
					e := math.Exp(float64(kept[j*2*d+d+c]) + float64(bias[j*d+c]) - top)
					sum += e
					weighed += e * float64(kept[j*2*d+c])
				}
				to[c] = float32(weighed / sum)
			}
		}
	}
}

// Select is the choice of an indexer (device.Index) by its definition. q is [T, Heads*Dim], weights
// [T, Heads], keys [slots, Dim] as kept: see WidenF8 and WidenI8; chosen [T, Positions].
func Select(chosen []int32, q, weights, keys []float32, spans []device.Span, p device.Index) {
	for _, s := range spans {
		for r := range s.Len {
			row := s.Row + r
			scores := indexScores(q[row*p.Heads*p.Dim:], weights[row*p.Heads:], keys, s, p.Sees(s.Pos+r), p)
			order := make([]int32, len(scores))
			for i := range order {
				order[i] = int32(i)
			}
			slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) })
			order = order[:min(p.TopK, len(order))]
			slices.Sort(order)
			if p.Entries {
				to := chosen[row*p.TopK:][:p.TopK]
				for i := range to[copy(to, order):] {
					to[len(order)+i] = -1
				}
				continue
			}
			to := chosen[row*p.Positions():][:0]
			for _, key := range order {
				for at := p.Last(int(key)-1) + 1; at <= p.Last(int(key)); at++ {
					to = append(to, int32(at))
				}
			}
			for at := p.Last(len(scores)-1) + 1; at <= s.Pos+r; at++ { // of the open pool
				to = append(to, int32(at))
			}
			for len(to) < p.Positions() {
				to = append(to, -1)
			}
		}
	}
}

// indexScores are the scores of the first n keys of a span for one row.
func indexScores(q, weights, keys []float32, s device.Span, n int, p device.Index) []float64 {
	scores := make([]float64, n)
	for j := range scores {
		key := keys[p.Slot(s.Blocks, j)*p.Dim:][:p.Dim]
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
// a cache of the positions that chosen [T, topK] has for it, up to the first -1.
func SparseRows(cache []float32, chosen []int32, topK int, spans []device.Span, width, blockTokens int, f func(cache []float32, s device.Span, all bool)) {
	for _, s := range spans {
		for r := range s.Len {
			one := device.Span{Row: s.Row + r, Len: 1, Pos: s.Pos + r, Slot: s.Slot, Blocks: s.Blocks}
			if one.Pos < topK {
				f(cache, one, true)
				continue
			}
			var rows []float32
			list := chosen[one.Row*topK:][:topK]
			if n := slices.Index(list, -1); n >= 0 {
				list = list[:n]
			}
			for _, c := range list {
				slot := int(s.Blocks[int(c)/blockTokens])*blockTokens + int(c)%blockTokens
				rows = append(rows, cache[slot*width:][:width]...)
			}
			one.Pos, one.Blocks = len(list)-1, nil
			for b := range (len(list) + blockTokens - 1) / blockTokens {
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
