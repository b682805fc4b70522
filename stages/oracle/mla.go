package oracle

import "krater/stages/model"

// latent is multi-head latent attention (arXiv 2405.04434, section 2.1), expanded. The last
// RopeDim values of a query head, and a key that all heads share, are rotated.
type latent struct{}

var _ = define(func(s *Spec, a model.MLA) mixer {
	s.Scale, s.LatentEps = float64(a.Scale), float64(a.LatentEps)
	s.Heads, s.QKDim, s.OutDim = a.Heads, a.QKDim(), a.VDim
	s.QRank, s.KVRank, s.Nope, s.RopeDim, s.VDim = a.QRank, a.KVRank, a.Nope, a.RopeDim, a.VDim
	s.Indexer = a.Index
	return latent{}
})

func (latent) operators() []string {
	return []string{"q_a", "q_resid", "q", "q_pe", "kv_a", "kv_norm", "k_pe", "kv_b", "index_q", "indexer_query", "index_k", "indexer_keys", "indexer_key_gate", "indexer_block_keys",
		"index_weights", "indexer_weights", "indexer_scores", "selected", "attn_probs", "attn"}
}

func (latent) product(l *Layer, op string) (Product, bool) {
	p := Product{In: l.of("input_norm"), Role: op, Heads: 1, Rope: -1}
	switch op {
	case "q_a":
		p.Out = l.QRank
	case "q":
		p.Out, p.Heads, p.Parts, p.Rope = l.Heads*l.QKDim, l.Heads, []int{l.Nope, l.RopeDim}, 1
		if l.QRank > 0 {
			p.Role = "q_b"
			p.In = l.of("q_resid")
		}
	case "kv_a":
		p.Out, p.Parts, p.Rope = l.KVRank+l.RopeDim, []int{l.KVRank, l.RopeDim}, 1
	case "kv_b":
		p.In, p.Out, p.Heads, p.Parts = l.of("kv_norm"), l.Heads*(l.Nope+l.VDim), l.Heads, []int{l.Nope, l.VDim}
	default:
		return l.indexProduct(op)
	}
	return p, true
}

func (latent) unrotated(l *Layer, op string) (x []float64, dim int) {
	if op == "q_pe" {
		return part(l.Get("q"), l.QKDim, l.Nope, l.RopeDim), l.RopeDim
	}
	return part(l.Get("kv_a"), l.KVRank+l.RopeDim, l.KVRank, l.RopeDim), l.RopeDim
}

func (latent) rotatedPart(s *Spec, q []float32) []float32 {
	return part(q, s.QKDim, s.Nope, s.RopeDim)
}

func (latent) attention(l *Layer, x *Attention) bool {
	q, kv, qPe, kPe := l.Get("q"), l.Get("kv_b"), []float64(nil), []float64(nil)
	if l.RopeDim > 0 {
		qPe, kPe = l.Get("q_pe"), l.Get("k_pe")
	}
	qk, width := l.QKDim, l.Nope+l.VDim
	x.Key = func(h int) int { return h }
	x.Score = func(h, k, i, j int) float64 {
		row := i*l.Heads + h
		return Dot(q[row*qk:][:l.Nope], kv[(j*l.Heads+k)*width:]) + Dot(qPe[row*l.RopeDim:][:l.RopeDim], kPe[j*l.RopeDim:])
	}
	x.Value = func(k, j int) []float64 { return kv[(j*l.Heads+k)*width:][l.Nope:width] }
	var ok bool
	if x.Chosen, ok = l.chosen(); !ok {
		return false
	}
	return len(q) == l.T*l.Heads*qk && len(qPe) == l.T*l.Heads*l.RopeDim && len(kPe) == l.T*l.RopeDim && len(kv) == l.T*l.Heads*width
}
