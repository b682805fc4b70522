package model

var _ = register("deepseek_v32", parseDeepSeekV32)

// parseDeepSeekV32 reads DeepSeek-V3.2 (arXiv 2512.02556): V3 with an indexer in each layer. The indexer
// rotates halves, though attention rotates neighbours.
func parseDeepSeekV32(f fields) *Config { return sparseLatent(f, false) }

// sparseLatent reads V3 with indexers. interleaved: the indexer rotates neighbours.
func sparseLatent(f fields, interleaved bool) *Config {
	c, layers := common(f)
	a, dense := latentAttention(f, c), denseFF(f)
	a.Rope.Interleaved = f.boolOr("rope_interleave", true)
	f.oneOf("scoring_func", "sigmoid", "sigmoid")
	f.oneOf("topk_method", "noaux_tc", "noaux_tc")
	moe, has := deepSeekMoE(f, layers, sigmoidRouter)
	layerKinds(f, layers, has)
	own, shared := a, sharedIndexers(f, layers)
	own.Index = indexer(f, a, interleaved)
	a.Index = Indexer{TopK: own.Index.TopK, Shared: true}
	mix := mixed(own, dense, moe, has)
	c.Stack(layers, Usual(mlaRoles, indexerRoles), func(i int) (Mixer, FFN) {
		m, ffn := mix(i)
		if shared(i) {
			m = a
		}
		return m, ffn
	})
	c.nextLayers(f.intOr("num_nextn_predict_layers", 0, 0, maxLayers))
	return c
}
