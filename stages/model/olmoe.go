package model

var _ = register("olmoe", parseOLMoE)

// parseOLMoE reads the OLMoE family (arXiv 2409.02060): grouped-query attention whose queries
// and keys are normed over all heads at once, and experts in every layer.
func parseOLMoE(f fields) *Config {
	c, layers := common(f)
	a := groupedQuery(f, c)
	a.QKNorm, a.WholeNorm, a.NormEps = true, true, c.NormEps
	if a.QDim() != c.Hidden { // the reference norms hidden_size values
		f.clash("head_dim", []string{"num_attention_heads", "hidden_size"}, "%d heads of %d are not hidden_size %d", a.Heads, a.HeadDim, c.Hidden)
	}
	fullAttention(f, layers)
	if slidingWindow(f, c) > 0 { // some implementations apply it, some do not
		f.clash("sliding_window", []string{"max_position_embeddings"}, "is not supported in this family")
	}
	if f.has("clip_qkv") {
		f.fail("clip_qkv", "is not supported: queries, keys and values are not clipped")
	}
	moe := softmaxExperts(f, expertsField(f), "intermediate_size", f.boolOr("norm_topk_prob", false), layers)
	c.Stack(layers, qwen3Roles, func(int) (Mixer, FFN) { return a, moe })
	return c
}
