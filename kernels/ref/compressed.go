package ref

import (
	"math"
	"sort"

	"krater/kernels/device"
)

// slotOf is the row of a cache that has a position of a span.
func slotOf(s *device.Span, pos, blockTokens int) int {
	return int(s.Blocks[pos/blockTokens])*blockTokens + pos%blockTokens
}

// Compress returns the entries [n, Dim] of the windows that the rows of spans complete (device.Compress), and the slots of the cache that
// they belong in. near [slots, Width] has the raw rows, by nearSpans, which are of the same rows; norm is [Dim], ape [Ratio*Parts*Dim],
// table [positions*Rope.Dim].
func Compress(spans []device.Span, near []float32, nearSpans []device.Span, norm, ape, table []float32, p device.Compress) (entries []float32, slots []int32) {
	parts := p.Parts()
	for i, s := range spans {
		for b := s.Pos / p.Ratio; device.Entry(b, p.Ratio) < s.Pos+s.Len; b++ {
			sum, total := make([]float64, p.Dim), make([]float64, p.Dim)
			for w := max(0, b+1-parts); w <= b; w++ {
				part := parts - 1 - (b - w) // of the row
				for j := range p.Ratio {
					row := near[slotOf(&nearSpans[i], w*p.Ratio+j, p.BlockTokens)*p.Width():][:p.Width()]
					for c := range p.Dim {
						at := part*p.Dim + c
						e := math.Exp(float64(row[parts*p.Dim+at]) + float64(ape[j*parts*p.Dim+at]))
						sum[c] += e * float64(row[at])
						total[c] += e
					}
				}
			}
			to := make([]float32, p.Dim)
			for c := range to {
				to[c] = float32(sum[c] / total[c])
			}
			RMSNorm(to, to, norm, p.Eps)
			Rope(to, p.Dim, []int32{int32(b * p.Ratio)}, table, p.Rope)
			entries, slots = append(entries, to...), append(slots, int32(device.EntrySlot(spans[i].Blocks, b, p.Ratio, p.BlockTokens)))
		}
	}
	return entries, slots
}

// Compressed is attention over the newest tokens of near [slots, Dim] and over entries [slots, Dim] (device.Compressed). q and out
// are [T, Heads*Dim], chosen [T*n] or nil, sinks [Heads].
func Compressed(out, q, entries []float32, spans []device.Span, near []float32, nearSpans []device.Span, chosen []int32, n int, sinks []float32, p device.Compressed) {
	for i, s := range nearSpans {
		for r := range s.Len {
			pos, row := s.Pos+r, s.Row+r
			var seen [][]float32
			for at := p.First(pos); at <= pos; at++ {
				seen = append(seen, near[slotOf(&nearSpans[i], at, p.BlockTokens)*p.Dim:][:p.Dim])
			}
			entry := func(e int) {
				seen = append(seen, entries[device.EntrySlot(spans[i].Blocks, e, p.Ratio, p.BlockTokens)*p.Dim:][:p.Dim])
			}
			if chosen == nil {
				for e := range p.Sees(pos) {
					entry(e)
				}
			} else {
				for _, e := range chosen[row*n:][:n] {
					if e >= 0 {
						entry(int(e))
					}
				}
			}
			for h := range p.Heads {
				query, sum := q[(row*p.Heads+h)*p.Dim:][:p.Dim], make([]float64, p.Dim)
				top, total := float64(sinks[h]), 0.0
				for _, k := range seen {
					top = max(top, float64(p.Scale)*dot(query, k))
				}
				total = math.Exp(float64(sinks[h]) - top)
				for _, k := range seen {
					e := math.Exp(float64(p.Scale)*dot(query, k) - top)
					total += e
					for c, v := range k {
						sum[c] += e * float64(v)
					}
				}
				for c, v := range sum {
					out[(row*p.Heads+h)*p.Dim+c] = float32(v / total)
				}
			}
		}
	}
}

// RouteByToken weighs the experts that table [V, TopK] lists for tokens [T], as RouteTopK does those that it chooses.
func RouteByToken(ids []int32, weights, logits []float32, tokens []int32, table []float32, p device.Router) {
	for t, token := range tokens {
		scores := Scores(logits[t*p.Experts:][:p.Experts], p.Scoring)
		var chosen []int
		sum := 0.0
		for _, e := range table[int(token)*p.TopK:][:p.TopK] {
			chosen = append(chosen, int(e))
			sum += scores[int(e)]
		}
		sort.Slice(chosen, func(a, b int) bool {
			if scores[chosen[a]] != scores[chosen[b]] {
				return scores[chosen[a]] > scores[chosen[b]]
			}
			return chosen[a] < chosen[b]
		})
		for k, e := range chosen {
			w := scores[e]
			if p.Normalize {
				w /= sum + 1e-20
			}
			ids[t*p.TopK+k], weights[t*p.TopK+k] = int32(e), float32(w*float64(p.Scale))
		}
	}
}
