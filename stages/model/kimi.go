package model

var (
	_ = register("kimi_k2", parseDeepSeekV3) // arXiv 2507.20534
	_ = register("kimi_k25", parseKimiK25)
)

// parseKimiK25 reads Kimi K2.5, a model for text and images: its text_config is a config of the
// DeepSeek-V3 family, whose tensors are below language_model. The vision tower is not run.
func parseKimiK25(f fields) *Config {
	text, ok := f.object("text_config")
	if !ok {
		f.require("text_config")
		return nil
	}
	text.oneOf("model_type", "kimi_k2", "kimi_k2", "deepseek_v3")
	refuse(text)
	c := parseDeepSeekV3(text)
	c.rename(func(name string) string { return "language_model." + name })
	c.Foreign = append(c.Foreign, "vision_tower.", "mm_projector.")
	return c
}
