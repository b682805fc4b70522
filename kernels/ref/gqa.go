package ref

import (
	"math"

	"krater/kernels/device"
)

// GQA is causal grouped-query attention (arXiv 2305.13245): every query head
// attends to the cached keys of its group at positions up to its own, or to the last of them. A cache
// row is the keys of all KVHeads, then their values. sinks is nil or [Heads].
func GQA(out, q, cache, sinks []float32, spans []device.Span, p device.GQA) {
	d := p.HeadDim
	for _, s := range spans {
		for h := range p.Heads {
			sink := math.Inf(-1)
			if sinks != nil {
				sink = float64(sinks[h])
			}
			group := h / (p.Heads / p.KVHeads)
			var keys, values [][]float64
			for j := range s.Pos + s.Len {
				slot := int(s.Blocks[j/p.BlockTokens])*p.BlockTokens + j%p.BlockTokens
				row := cache[slot*p.Width():][:p.Width()]
				keys = append(keys, widen(row[group*d:][:d]))
				values = append(values, widen(row[(p.KVHeads+group)*d:][:d]))
			}
			for r := range s.Len {
				at := ((s.Row+r)*p.Heads + h) * d
				first, end := p.First(s.Pos+r), s.Pos+r+1
				attend(out[at:][:d], q[at:][:d], keys[first:end], values[first:end], float64(p.Scale), sink)
			}
		}
	}
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}
