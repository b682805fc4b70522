package ref

import (
	"math"

	"krater/kernels/device"
)

// KVB is kv_b in integers: see device.KVB.
type KVB struct{ K, V []QMat }

// Widen returns the matrix [Heads*(Nope+V), Rank] that the integers represent. With it, MLA is the
// reference for MLAPrefill.
func (w KVB) Widen(p device.MLA) []float32 {
	out := make([]float32, 0, p.Heads*(p.Nope+p.V)*p.Rank)
	row := make([]float32, p.Rank)
	for h := range p.Heads {
		k, v := w.K[h].matrix().Dequantize(), w.V[h].matrix()
		for i := range p.Nope {
			for r := range row {
				row[r] = k[r*p.Nope+i]
			}
			out = append(out, row...)
		}
		for i := range p.V {
			v.Row(row, i)
			out = append(out, row...)
		}
	}
	return out
}

// MLAAbsorbed is the reference of MLADecode with kv_b in integers: the query is quantised and
// multiplied with the head's K, attention runs over the cache, its result of Rank values is
// quantised and multiplied with V.
func MLAAbsorbed(out, q, cache []float32, w KVB, spans []device.Span, p device.MLA) {
	for _, s := range spans {
		for r := range s.Len {
			for h := range p.Heads {
				row := (s.Row+r)*p.Heads + h
				latent := Latent(q[row*(p.Nope+p.Rope):][:p.Nope+p.Rope], cache, w.K[h], s, r, p)
				MatMulQ(out[row*p.V:][:p.V], QuantizeRows(latent, p.Rank, w.V[h].Group), w.V[h])
			}
		}
	}
}

// Latent returns what row r of a span attends to with one head, in latent space.
func Latent(query, cache []float32, k QMat, s device.Span, r int, p device.MLA) []float32 {
	width := p.Rank + p.Rope
	absorbed := make([]float32, width)
	MatMulQ(absorbed[:p.Rank], QuantizeRows(query[:p.Nope], p.Nope, k.Group), k)
	copy(absorbed[p.Rank:], query[p.Nope:])
	var keys [][]float64
	for j := range s.Pos + r + 1 {
		slot := int(s.Blocks[j/p.BlockTokens])*p.BlockTokens + j%p.BlockTokens
		keys = append(keys, widen(cache[slot*width:][:width]))
	}
	latent := make([]float32, p.Rank)
	attend(latent, absorbed, keys, keys, float64(p.Scale), math.Inf(-1))
	return latent
}
