package model

import "krater/kernels/device"

var _ = register("deepseek_v3", parseDeepSeekV3)

// parseDeepSeekV3 reads the DeepSeek-V3 family (V3, V3.1, R1; arXiv 2412.19437): V2's attention
// and experts, and a router of sigmoids. Layers that predict tokens further ahead are not run with the model.
func parseDeepSeekV3(f fields) *Config {
	c, layers := common(f)
	a, dense := latentAttention(f, c), denseFF(f)
	a.Rope.Interleaved = f.boolOr("rope_interleave", true)
	f.oneOf("scoring_func", "sigmoid", "sigmoid")
	f.oneOf("topk_method", "noaux_tc", "noaux_tc")
	moe, has := deepSeekMoE(f, layers, sigmoidRouter)
	at := mixed(a, dense, moe, has)
	c.Stack(layers, Usual(mlaRoles), at)
	if next := f.intOr("num_nextn_predict_layers", 0, 0, maxLayers); next > 0 {
		c.nextLayers(next)
		c.Draft = c.deepSeekDraft(at(layers))
	}
	return c
}

// sigmoidRouter follows MoEGate of the release. A vector is added to the scores for the choice; a
// group is rated by the sum of its two best; the chosen scores, without that vector, are normalised
// and then scaled. Fields whose defaults differ between families are required.
func sigmoidRouter(f fields, m *MoE) {
	for _, name := range []string{"first_k_dense_replace", "n_shared_experts", "routed_scaling_factor"} {
		f.require(name)
	}
	r := device.Router{
		Experts:    m.Experts,
		TopK:       f.int("num_experts_per_tok", 1, maxExperts),
		Scoring:    device.ScoreSigmoid,
		GroupScore: device.GroupTop2Sum,
		Scale:      float32(f.floatOr("routed_scaling_factor", 1, 1e-6, 1e6)),
	}
	r.Normalize = f.boolOr("norm_topk_prob", true) && r.TopK > 1
	f.routerGroups(&r, true)
	m.Router, m.Correction = r, true
}
