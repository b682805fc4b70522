package oracle

import (
	"fmt"
	"math"

	"krater/stages/model"
)

// attention is the block of a layer.
func (o *oracle) attention(l *model.LayerSpec, x matrix) matrix {
	switch a := l.Mixer.(type) {
	case model.GQA:
		return o.grouped(l, a, x)
	case model.MLA:
		return o.latent(l, a, x)
	}
	o.err = fmt.Errorf("oracle: %T is not defined", l.Mixer)
	return x
}

// grouped is grouped-query attention: query head h reads key head
// h / (heads per key head).
func (o *oracle) grouped(l *model.LayerSpec, a model.GQA, x matrix) matrix {
	project := func(role string) matrix {
		if a.Bias {
			return o.biased(x, l.Name(role), l.Name(role+"_bias"))
		}
		return o.linear(x, l.Name(role))
	}
	q, k, v := project("q"), project("k"), project("v")
	head := func(m matrix, t, h int) []float64 { return m[t][h*a.HeadDim : (h+1)*a.HeadDim] }
	out := make(matrix, len(x))
	for t := range x {
		for h := range a.Heads {
			shared := h / (a.Heads / a.KVHeads)
			query := rotate(a.Rope, head(q, t, h), t)
			probs := make([]float64, t+1)
			for s := range probs {
				probs[s] = float64(a.Scale) * dot(query, rotate(a.Rope, head(k, s, shared), s))
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
	return o.linear(out, l.Name("o"))
}

// biased is x * w^T, plus a bias.
func (o *oracle) biased(x matrix, weight, bias string) matrix {
	out := o.linear(x, weight)
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
func (o *oracle) latent(l *model.LayerSpec, a model.MLA, x matrix) matrix {
	var q matrix
	if a.QRank == 0 {
		q = o.linear(x, l.Name("q"))
	} else {
		q = o.linear(o.norm(o.linear(x, l.Name("q_a")), l.Name("q_a_norm"), float64(a.LatentEps)), l.Name("q_b"))
	}
	kvA := o.linear(x, l.Name("kv_a"))
	latent, kPe := make(matrix, len(x)), make(matrix, len(x))
	for t := range kvA {
		latent[t] = kvA[t][:a.KVRank]
		kPe[t] = rotate(a.Rope, kvA[t][a.KVRank:], t)
	}
	kv := o.linear(o.norm(latent, l.Name("kv_a_norm"), float64(a.LatentEps)), l.Name("kv_b"))

	out := make(matrix, len(x))
	for t := range x {
		out[t] = make([]float64, a.Heads*a.VDim)
		for h := range a.Heads {
			query := q[t][h*a.QKDim() : (h+1)*a.QKDim()]
			qPe := rotate(a.Rope, query[a.Nope:], t)
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
	return o.linear(out, l.Name("o"))
}

// rotate is RoPE at a position: interleaved pairs as complex numbers times
// e^(i*position*frequency).
func rotate(r *model.RopeConfig, x []float64, position int) []float64 {
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
