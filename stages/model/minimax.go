package model

import "krater/kernels/device"

var _ = register("minimax_m2", parseMiniMaxM2)

// miniMaxRoles are the names of MiniMax-M2's tensors: Mixtral's experts, Qwen3's norms.
var miniMaxRoles = Usual(mixtralRoles, qwen3Norms, Roles{"correction": "block_sparse_moe.e_score_correction_bias"})

// parseMiniMaxM2 reads the MiniMax-M2 family (M2, M2.1, M2.5, M2.7): grouped-query attention whose
// queries and keys are normed over all heads at once and rotated in a part of each head, and experts
// in every layer, chosen as DeepSeek-V3 chooses them. The modules that predict tokens further ahead
// are not run.
func parseMiniMaxM2(f fields) *Config {
	c, layers := common(f)
	a := gqaSizes(f, c.Hidden)
	f.refuseBias("attention_bias")
	a.rotate(f, c, miniMaxRotary(f, a.HeadDim))
	f.oneOf("qk_norm_type", "per_layer", "per_layer")
	if f.boolOr("use_qk_norm", true) {
		a.QKNorm, a.WholeNorm, a.NormEps = true, true, c.NormEps
	}
	fullAttention(f, layers)
	if kinds := f.numbers("attn_type_list", "kind", layers); len(kinds) > 1 || len(kinds) == 1 && kinds[0] != 1 {
		f.fail("attn_type_list", "only kind 1, full attention, is supported")
	}
	if f.intOr("shared_intermediate_size", 0, 0, maxFF) > 0 {
		f.fail("shared_intermediate_size", "a shared expert is not supported in this family")
	}
	if f.intOr("num_expert_group", 1, 0, maxExperts) > 1 {
		f.fail("num_expert_group", "groups of experts are not supported in this family")
	}
	f.oneOf("scoring_func", "sigmoid", "sigmoid")
	moe := softmaxExperts(f, "num_local_experts", "intermediate_size", true, layers)
	moe.Router.Scoring = device.ScoreSigmoid
	moe.Router.Scale = float32(f.floatOr("routed_scaling_factor", 1, 1e-6, 1e6))
	moe.Correction = f.boolOr("use_routing_bias", true)
	c.Stack(layers, miniMaxRoles, func(int) (Mixer, FFN) { return a, moe })
	if f.boolOr("use_mtp", false) {
		c.nextLayers(f.intOr("num_mtp_modules", 0, 0, maxLayers) * f.intOr("mtp_transformer_layers", 1, 0, maxLayers))
	}
	return c
}

// miniMaxRotary reads how many values of a head are rotated: rotary_dim in releases,
// partial_rotary_factor in transformers 5.
func miniMaxRotary(f fields, headDim int) int {
	if !f.has("rotary_dim") {
		return partialRotary(f, headDim, 1)
	}
	dim := f.int("rotary_dim", 2, maxHeadDim)
	if dim > headDim || dim%2 != 0 {
		f.clash("rotary_dim", []string{"head_dim"}, "%d of heads of %d: want an even number up to that", dim, headDim)
		return 2 // harmless
	}
	if other := partialRotary(f, headDim, float64(dim)/float64(headDim)); other != dim {
		f.clash("partial_rotary_factor", []string{"rotary_dim"}, "makes %d of a head's %d values, rotary_dim %d", other, headDim, dim)
	}
	return dim
}
