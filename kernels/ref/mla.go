package ref

import (
	"math"

	"krater/kernels/device"
)

// MLA is multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section
// 2.1) by its definition: keys and values of every position are expanded with
// kvB, then ordinary causal softmax attention. cache rows are Rank+Rope wide.
// It is the reference of both MLAPrefill and MLADecode.
func MLA(out, q, cache, kvB []float32, spans []device.Span, p device.MLA) {
	for _, s := range spans {
		for r := range s.Len {
			for h := range p.Heads {
				mlaHead(out, q, cache, kvB, s, r, h, p)
			}
		}
	}
}

func mlaHead(out, q, cache, kvB []float32, s device.Span, r, h int, p device.MLA) {
	qk, width := p.Nope+p.Rope, p.Rank+p.Rope
	query := q[((s.Row+r)*p.Heads+h)*qk:][:qk]
	weights := kvB[h*(p.Nope+p.V)*p.Rank:][:(p.Nope+p.V)*p.Rank]
	row := func(i int) []float32 { return weights[i*p.Rank : (i+1)*p.Rank] }

	keys := s.Pos + r + 1
	scores := make([]float64, keys)
	latents := make([][]float32, keys)
	top := math.Inf(-1)
	for j := range keys {
		slot := int(s.Blocks[j/p.BlockTokens])*p.BlockTokens + j%p.BlockTokens
		cached := cache[slot*width:][:width]
		latents[j] = cached[:p.Rank]
		score := dot(query[p.Nope:], cached[p.Rank:])
		for i := range p.Nope {
			score += float64(query[i]) * dot(row(i), latents[j])
		}
		scores[j] = score * float64(p.Scale)
		top = math.Max(top, scores[j])
	}
	var sum float64
	for j := range scores {
		scores[j] = math.Exp(scores[j] - top)
		sum += scores[j]
	}
	for i := range p.V {
		var v float64
		for j := range scores {
			v += scores[j] * dot(row(p.Nope+i), latents[j])
		}
		out[((s.Row+r)*p.Heads+h)*p.V+i] = float32(v / sum)
	}
}
