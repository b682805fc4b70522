package ref

import (
	"math"

	"krater/kernels/device"
)

// MLA is multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section
// 2.1) by its definition: keys and values of every position are expanded with
// kvB, then ordinary causal softmax attention. cache rows are Rank+Rope wide, as
// kept: see WidenF8 and WidenI8.
// It is the reference of both MLAPrefill and MLADecode.
func MLA(out, q, cache, kvB []float32, spans []device.Span, p device.MLA) {
	for _, s := range spans {
		for h := range p.Heads {
			keys, values := expand(cache, kvB, s, h, p)
			for r := range s.Len {
				row := s.Row + r
				query := q[(row*p.Heads+h)*(p.Nope+p.Rope):][:p.Nope+p.Rope]
				attend(out[(row*p.Heads+h)*p.V:][:p.V], query, keys[:s.Pos+r+1], values, float64(p.Scale), math.Inf(-1))
			}
		}
	}
}

// expand returns the keys and values of head h at all positions of a span.
func expand(cache, kvB []float32, s device.Span, h int, p device.MLA) (keys, values [][]float64) {
	width := p.Rank + p.Rope
	weights := kvB[h*(p.Nope+p.V)*p.Rank:]
	for j := range s.Pos + s.Len {
		slot := int(s.Blocks[j/p.BlockTokens])*p.BlockTokens + j%p.BlockTokens
		cached := cache[slot*width:][:width]
		all := make([]float64, p.Nope+p.V)
		for i := range all {
			all[i] = dot(weights[i*p.Rank:(i+1)*p.Rank], cached[:p.Rank])
		}
		key := append([]float64(nil), all[:p.Nope]...)
		for _, v := range cached[p.Rank:] {
			key = append(key, float64(v))
		}
		keys, values = append(keys, key), append(values, all[p.Nope:])
	}
	return keys, values
}

// attend is softmax(q . keys * scale) . values, where the softmax has sink as one more score.
func attend(out, query []float32, keys, values [][]float64, scale, sink float64) {
	scores := make([]float64, len(keys))
	top := sink
	for j, key := range keys {
		for i, v := range query {
			scores[j] += float64(v) * key[i]
		}
		scores[j] *= scale
		top = math.Max(top, scores[j])
	}
	sum := math.Exp(sink - top)
	for j := range scores {
		scores[j] = math.Exp(scores[j] - top)
		sum += scores[j]
	}
	for i := range out {
		var v float64
		for j, weight := range scores {
			v += weight * values[j][i]
		}
		out[i] = float32(v / sum)
	}
}
