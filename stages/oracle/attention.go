package oracle

import (
	"math"

	"krater/stages/model"
)

// attention is the block that the config asks for.
func (o *oracle) attention(n model.LayerNames, x matrix) matrix {
	if o.cfg.Attention.Kind == model.AttentionGQA {
		return o.grouped(n, x)
	}
	return o.latent(n, x)
}

// grouped is grouped-query attention: query head h reads key head
// h / (heads per key head).
func (o *oracle) grouped(n model.LayerNames, x matrix) matrix {
	a := o.cfg.Attention
	q, k, v := o.biased(x, n.Q, n.QBias), o.biased(x, n.K, n.KBias), o.biased(x, n.V, n.VBias)
	head := func(m matrix, t, h int) []float64 { return m[t][h*a.HeadDim : (h+1)*a.HeadDim] }
	out := make(matrix, len(x))
	for t := range x {
		for h := range a.Heads {
			shared := h / (a.Heads / a.KVHeads)
			query := o.rotate(head(q, t, h), t)
			probs := make([]float64, t+1)
			for s := range probs {
				probs[s] = float64(a.Scale) * dot(query, o.rotate(head(k, s, shared), s))
			}
			softmax(probs)
			sum := make([]float64, a.HeadDim)
			for s, p := range probs {
				for i, value := range head(v, s, shared) {
					sum[i] += p * value
				}
			}
			out[t] = append(out[t], sum...)
		}
	}
	return o.linear(out, n.O)
}

// biased is x * w^T, plus a bias unless its name is empty.
func (o *oracle) biased(x matrix, weight, bias string) matrix {
	out := o.linear(x, weight)
	if bias == "" {
		return out
	}
	b := o.load(bias, len(out[0]))
	for t := range out {
		for i := range out[t] {
			if o.err == nil {
				out[t][i] += b[0][i]
			}
		}
	}
	return out
}

// latent is multi-head latent attention, expanded.
func (o *oracle) latent(n model.LayerNames, x matrix) matrix {
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
