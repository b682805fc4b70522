package model

import "slices"

var (
	_ = register("qwen3", parseQwen3)
	_ = register("qwen3_moe", parseQwen3MoE)
)

// qwen3Roles are the names of Qwen3's tensors.
var (
	qwen3Roles = Usual(gqaRoles, qwen3Norms)
	qwen3Norms = Roles{
		"q_norm": "self_attn.q_norm.weight",
		"k_norm": "self_attn.k_norm.weight",
	}
)

// parseQwen3 reads the dense Qwen3 family (arXiv 2505.09388): grouped-query attention whose
// query and key heads are normed before they are rotated, a SwiGLU network in every layer.
func parseQwen3(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), qwen3Attention(f, c, layers)
	c.Stack(layers, qwen3Roles, func(int) (Mixer, FFN) { return a, ffn })
	return c
}

// parseQwen3MoE reads the Qwen3-MoE family: experts in place of the network, without shared
// ones.
func parseQwen3MoE(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), qwen3Attention(f, c, layers)
	moe := qwenExperts(f, layers)
	has := qwenSparse(f)
	c.Stack(layers, qwen3Roles, mixed(a, ffn, moe, has))
	return c
}

// qwenExperts reads the routed experts of Qwen's mixtures.
func qwenExperts(f fields, layers int) MoE {
	return softmaxExperts(f, expertsField(f), "moe_intermediate_size", f.boolOr("norm_topk_prob", false), layers)
}

// qwenSparse reads which layers of Qwen's mixtures have experts.
func qwenSparse(f fields) (has func(layer int) bool) {
	step, dense := f.intOr("decoder_sparse_step", 1, 1, maxLayers), f.numbers("mlp_only_layers", "layer", maxLayers)
	return func(i int) bool { return (i+1)%step == 0 && !slices.Contains(dense, int32(i)) }
}

func qwen3Attention(f fields, c *Config, layers int) GQA {
	a := groupedQuery(f, c)
	a.QKNorm, a.NormEps = true, c.NormEps
	fullAttention(f, layers)
	return a
}
