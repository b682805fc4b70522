package model

import (
	"math"

	"krater/kernels/device"
)

var _ = register("deepseek_v2", parseDeepSeekV2)

// deepSeekLatentEps is the eps of q_a_layernorm and kv_a_layernorm: the
// released modelling code builds them without passing rms_norm_eps on, so they
// keep that class's default.
const deepSeekLatentEps = 1e-6

// parseDeepSeekV2 reads the DeepSeek-V2 family (V2, V2-Lite, Coder-V2; arXiv
// 2405.04434): multi-head latent attention and a softmax router. Defaults are
// those on which the release's and transformers' config classes agree; where
// they differ the field has to be there.
func parseDeepSeekV2(f fields) *Config {
	c, layers := common(f)
	a, dense := latentAttention(f, c), denseFF(f)
	moe, has := deepSeekMoE(f, layers, deepSeekRouter)
	c.Stack(layers, Usual(mlaRoles), mixed(a, dense, moe, has))
	return c
}

// latentAttention reads latent attention without biases, whose pairs are neighbours.
func latentAttention(f fields, c *Config) MLA {
	f.refuseBias("attention_bias")
	a := mlaSizes(f, 2)
	var scale float64
	a.Rope, scale = parseRope(f, a.RopeDim, c.MaxContext)
	a.Rope.Interleaved = true
	a.Scale = float32(scale / math.Sqrt(float64(a.QKDim())))
	return a
}

// mlaSizes reads the sizes of latent attention, of whose heads at least leastRope values are rotated.
func mlaSizes(f fields, leastRope int) MLA {
	a := MLA{
		Heads:     f.int("num_attention_heads", 1, maxHeads),
		KVRank:    f.int("kv_lora_rank", 1, maxRank),
		Nope:      f.int("qk_nope_head_dim", 1, maxHeadDim),
		RopeDim:   f.int("qk_rope_head_dim", leastRope, maxHeadDim),
		VDim:      f.int("v_head_dim", 1, maxHeadDim),
		LatentEps: deepSeekLatentEps,
	}
	// null is a direct q_proj. 0 would build an empty projection in the released
	// code, and without the field its default rank would be used: neither is meant.
	if !f.null("q_lora_rank") {
		a.QRank = f.int("q_lora_rank", 1, maxRank)
	}
	if kv := f.intOr("num_key_value_heads", a.Heads, 1, maxHeads); kv != a.Heads {
		f.clash("num_key_value_heads", []string{"num_attention_heads"}, "%d differs from num_attention_heads %d: latent attention has no key groups", kv, a.Heads)
	}
	if a.RopeDim%2 != 0 {
		f.fail("qk_rope_head_dim", "%d is odd: rotation needs pairs", a.RopeDim)
	}
	if qk := f.intOr("qk_head_dim", a.QKDim(), 1, 2*maxHeadDim); qk != a.QKDim() {
		f.clash("qk_head_dim", []string{"qk_nope_head_dim"}, "%d is not qk_nope_head_dim + qk_rope_head_dim = %d", qk, a.QKDim())
	}
	return a
}

// deepSeekMoE reads the experts, and which layers have them. router reads how they are chosen.
func deepSeekMoE(f fields, layers int, router func(f fields, m *MoE)) (m MoE, has func(layer int) bool) {
	if f.null("n_routed_experts") { // a dense model, as the release's config class allows
		return m, func(int) bool { return false }
	}
	m = MoE{
		Experts: f.int("n_routed_experts", 1, maxExperts),
		FF:      f.int("moe_intermediate_size", 1, maxFF),
	}
	first := f.intOr("first_k_dense_replace", 0, 0, maxLayers)
	every := f.intOr("moe_layer_freq", 1, 1, maxLayers)
	if !f.null("n_shared_experts") {
		m.SharedFF = m.FF * f.int("n_shared_experts", 0, maxShared)
	}
	if first > layers {
		f.clash("first_k_dense_replace", []string{"num_hidden_layers"}, "%d is more than num_hidden_layers %d", first, layers)
	}
	router(f, &m)
	f.checkExperts(m, "n_routed_experts", "num_experts_per_tok", layers)
	return m, func(i int) bool { return i >= first && i%every == 0 }
}

// deepSeekRouter follows MoEGate of the release: group-limited choice rates a
// group by its best expert, and the scaling factor applies to weights that are
// not normalised (normalising needs more than one expert per token).
func deepSeekRouter(f fields, m *MoE) {
	r := device.Router{
		Experts:    m.Experts,
		TopK:       f.int("num_experts_per_tok", 1, maxExperts),
		Scoring:    device.ScoreSoftmax,
		GroupScore: device.GroupMax,
		Scale:      float32(f.floatOr("routed_scaling_factor", 1, 1e-6, 1e6)),
	}
	f.oneOf("scoring_func", "softmax", "softmax")
	if f.boolOr("norm_topk_prob", false) && r.TopK > 1 {
		r.Normalize, r.Scale = true, 1
	}
	limited := f.oneOf("topk_method", "greedy", "greedy", "group_limited_greedy") != "greedy"
	f.routerGroups(&r, limited)
	m.Router = r
}

// routerGroups reads the groups of a router's experts. limited: they limit the choice.
func (f fields) routerGroups(r *device.Router, limited bool) {
	groups, top := f.intOr("n_group", 1, 1, maxExperts), f.intOr("topk_group", 1, 1, maxExperts)
	if r.Experts%groups != 0 {
		f.clash("n_group", []string{"n_routed_experts"}, "%d does not divide n_routed_experts %d", groups, r.Experts)
	}
	if top > groups {
		f.clash("topk_group", []string{"n_group"}, "%d is more than n_group %d", top, groups)
	}
	if !limited {
		return
	}
	f.require("n_group")
	f.require("topk_group")
	// Fewer experts in the open groups than are chosen: the rest would come from
	// closed groups at weight 0.
	if r.TopK > top*(r.Experts/groups) {
		f.clash("num_experts_per_tok", []string{"n_routed_experts", "n_group", "topk_group"},
			"%d is more than the %d experts of topk_group %d groups", r.TopK, top*(r.Experts/groups), top)
	}
	r.Groups, r.TopGroups = groups, top
}
