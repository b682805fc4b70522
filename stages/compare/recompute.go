package compare

import (
	"fmt"
	"math"

	"krater/stages/model"
)

// keysValues is kv_b_proj's output [T, heads*(nope+v)] for the latents that the
// probe saw. The engine never has it in the absorbed form and only in pieces in
// the expanded one.
func (c *comparison) keysValues(layer int, seen *capture) ([]float32, error) {
	a, ok := c.cfg.Layers[layer].Mixer.(model.MLA)
	if !ok {
		return nil, fmt.Errorf("layer %d has no latents", layer)
	}
	w, err := c.weight(c.cfg.Layers[layer].Name("kv_b"))
	if err != nil {
		return nil, err
	}
	latent, n := seen.f32[key{layer, "kv_norm"}], a.Heads*(a.Nope+a.VDim)
	if len(latent) != seen.n*a.KVRank || len(w) != n*a.KVRank {
		return nil, fmt.Errorf("%d latents and %d weights for rank %d", len(latent), len(w), a.KVRank)
	}
	out := make([]float32, seen.n*n)
	for t := range seen.n {
		for i := range n {
			out[t*n+i] = float32(dot(latent[t*a.KVRank:(t+1)*a.KVRank], w[i*a.KVRank:(i+1)*a.KVRank]))
		}
	}
	return out, nil
}

// probabilities is the causal softmax [heads, T, T] of the queries and keys that
// the probe saw.
func (c *comparison) probabilities(layer int, seen *capture) ([]float32, error) {
	kv, err := c.keysValues(layer, seen)
	if err != nil {
		return nil, err
	}
	a, t := c.cfg.Layers[layer].Mixer.(model.MLA), seen.n
	q, qPe, kPe := seen.f32[key{layer, "q"}], seen.f32[key{layer, "q_pe"}], seen.f32[key{layer, "k_pe"}]
	if len(q) != t*a.Heads*a.QKDim() || len(qPe) != t*a.Heads*a.RopeDim || len(kPe) != t*a.RopeDim {
		return nil, fmt.Errorf("%d queries, %d and %d rotated values", len(q), len(qPe), len(kPe))
	}
	probs := make([]float32, a.Heads*t*t)
	scores := make([]float64, t)
	for h := range a.Heads {
		for i := range t {
			row := i*a.Heads + h
			top := math.Inf(-1)
			for j := range i + 1 {
				key := kv[(j*a.Heads+h)*(a.Nope+a.VDim):]
				scores[j] = float64(a.Scale) * (dot(q[row*a.QKDim():row*a.QKDim()+a.Nope], key) +
					dot(qPe[row*a.RopeDim:(row+1)*a.RopeDim], kPe[j*a.RopeDim:]))
				top = max(top, scores[j])
			}
			var sum float64
			for j := range i + 1 {
				scores[j] = math.Exp(scores[j] - top)
				sum += scores[j]
			}
			for j := range i + 1 {
				probs[(h*t+i)*t+j] = float32(scores[j] / sum)
			}
		}
	}
	return probs, nil
}

// dot is the sum of a[i]*b[i] over a, in float64.
func dot(a, b []float32) float64 {
	var sum float64
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum
}
