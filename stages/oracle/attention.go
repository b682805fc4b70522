package oracle

import (
	"math"

	"krater/stages/model"
)

// attention is multi-head latent attention, expanded.
func (o *oracle) attention(n model.LayerNames, x matrix) matrix {
	a := o.cfg.Attention
	var q matrix
	if a.QRank == 0 {
		q = o.linear(x, n.Q)
	} else {
		q = o.linear(o.norm(o.linear(x, n.QA), n.QANorm, float64(a.LatentEps)), n.QB)
	}
	kvA := o.linear(x, n.KVA)
	latent, kPe := make(matrix, len(x)), make(matrix, len(x))
	for t := range kvA {
		latent[t] = kvA[t][:a.KVRank]
		kPe[t] = o.rotate(kvA[t][a.KVRank:], t)
	}
	kv := o.linear(o.norm(latent, n.KVNorm, float64(a.LatentEps)), n.KVB)

	out := make(matrix, len(x))
	for t := range x {
		out[t] = make([]float64, a.Heads*a.VDim)
		for h := range a.Heads {
			query := q[t][h*a.QKDim() : (h+1)*a.QKDim()]
			qPe := o.rotate(query[a.Nope:], t)
			head := func(s int) []float64 { return kv[s][h*(a.Nope+a.VDim) : (h+1)*(a.Nope+a.VDim)] }
			probs := make([]float64, t+1)
			for s := range probs {
				probs[s] = float64(a.Scale) * (dot(query[:a.Nope], head(s)[:a.Nope]) + dot(qPe, kPe[s]))
			}
			softmax(probs)
			for s, p := range probs {
				for i, v := range head(s)[a.Nope:] {
					out[t][h*a.VDim+i] += p * v
				}
			}
		}
	}
	return o.linear(out, n.O)
}

// rotate is RoPE at a position: interleaved pairs as complex numbers times
// e^(i*position*frequency).
func (o *oracle) rotate(x []float64, position int) []float64 {
	r := o.cfg.Rope
	out := make([]float64, len(x))
	for i, f := range r.InvFreq {
		a, b := 2*i, 2*i+1
		if !r.Interleaved {
			a, b = i, i+len(r.InvFreq)
		}
		sin, cos := math.Sincos(float64(position) * f)
		out[a] = r.CosSinScale * (x[a]*cos - x[b]*sin)
		out[b] = r.CosSinScale * (x[a]*sin + x[b]*cos)
	}
	return out
}

func softmax(x []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for i, v := range x {
		x[i] = math.Exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}
