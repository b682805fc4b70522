package model

var _ = register("mistral", parseMistral)

// parseMistral reads the dense Mistral family (arXiv 2310.06825): Llama's layers, and a sliding
// window in all of them where there is one.
func parseMistral(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), groupedQuery(f, c)
	fullAttention(f, layers)
	a.Window = slidingWindow(f, c)
	c.Stack(layers, Usual(gqaRoles), func(int) (Mixer, FFN) { return a, ffn })
	return c
}
