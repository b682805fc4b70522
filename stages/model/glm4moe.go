package model

var _ = register("glm4_moe", parseGLM4MoE)

// parseGLM4MoE reads the GLM-4-MoE family (GLM-4.5, 4.6, 4.7, and 4.5-Air; arXiv 2508.06471):
// grouped-query attention that rotates half of each head, and the experts and the router of
// DeepSeek-V3. The larger models norm the heads of queries and keys.
func parseGLM4MoE(f fields) *Config {
	c, layers := common(f)
	a, dense := gqaSizes(f, c.Hidden), denseFF(f)
	a.rotate(f, c, partialRotary(f, a.HeadDim, 0.5))
	a.Bias = f.boolOr("attention_bias", false)
	if f.boolOr("use_qk_norm", false) {
		a.QKNorm, a.NormEps = true, c.NormEps
	}
	fullAttention(f, layers)
	moe, has := deepSeekMoE(f, layers, sigmoidRouter)
	c.Stack(layers, qwen3Roles, mixed(a, dense, moe, has))
	c.nextLayers(f.intOr("num_nextn_predict_layers", 0, 0, maxLayers))
	return c
}
