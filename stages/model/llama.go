package model

var _ = register("llama", parseLlama)

// parseLlama reads the Llama family (Llama 3, arXiv 2407.21783, and models of its shape):
// grouped-query attention, a SwiGLU network in every layer.
func parseLlama(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), groupedQuery(f, c)
	fullAttention(f, layers)
	c.Stack(layers, Usual(gqaRoles), func(int) (Mixer, FFN) { return a, ffn })
	return c
}
