package model

var _ = register("glm_moe_dsa", parseGLMMoEDSA)

// parseGLMMoEDSA reads GLM-5: DeepSeek-V3.2 with an indexer that rotates neighbours, as attention does. A
// layer may use the choice of the layer before.
func parseGLMMoEDSA(f fields) *Config { return sparseLatent(f, true) }
