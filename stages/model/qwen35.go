package model

var (
	_ = register("qwen3_5", parseQwen35)
	_ = register("qwen3_5_moe", parseQwen35MoE)
)

// Names of Qwen3.5's tensors: of layers with full attention, and of those with DeltaNet.
var (
	qwen35Roles      = Usual(qwen3NextRoles, qwen35Below)
	qwen35DeltaRoles = Usual(qwen3DeltaRoles, qwen35Below)
	qwen35Below      = Roles{
		"embed": "model.language_model.embed_tokens.weight",
		"norm":  "model.language_model.norm.weight",
		"layer": "model.language_model.layers.*.",
	}
)

// parseQwen35 reads the dense models of the Qwen3.5 family (Qwen3.5-27B).
func parseQwen35(f fields) *Config {
	return qwen35(f, "qwen3_5_text", func(_ *Config, text fields, _ int) FFN { return denseFF(text) })
}

// parseQwen35MoE reads the mixtures of the Qwen3.5 family (Qwen3.5-35B-A3B; Qwen3.6-35B-A3B too): every
// layer has experts with a shared one. The chosen ones' weights always sum to 1, no field says so.
// Plain releases have the experts of a layer fused, those in FP8 one by one.
func parseQwen35MoE(f fields) *Config {
	return qwen35(f, "qwen3_5_moe_text", func(c *Config, text fields, layers int) FFN {
		moe := softmaxExperts(text, expertsField(text), "moe_intermediate_size", true, layers)
		moe.SharedFF, moe.SharedGate = text.int("shared_expert_intermediate_size", 1, maxFF), true
		c.Fused = []Fused{
			{Name: "mlp.experts.gate_up_proj", Parts: []FusedPart{{Role: "expert.gate", Step: 1}, {Role: "expert.up", First: moe.FF, Step: 1}}},
			{Name: "mlp.experts.down_proj", Parts: []FusedPart{{Role: "expert.down", Step: 1}}},
		}
		return moe
	})
}

// qwen35 reads a model for text and images whose text_config, of model_type kind, is Qwen3-Next's but
// for the order of DeltaNet's columns and the networks. The positions of text are equal in
// all three dimensions of mrope_section, so that it does not matter. Vision tower and draft head (mtp)
// are not run.
func qwen35(f fields, kind string, ffn func(c *Config, text fields, layers int) FFN) *Config {
	text, ok := f.object("text_config")
	if !ok {
		f.require("text_config")
		return nil
	}
	text.oneOf("model_type", kind, kind)
	refuse(text)
	c, layers := common(text)
	const tie, gate = "tie_word_embeddings", "attn_output_gate"
	if outer := f.boolOr(tie, c.TieEmbed); !text.has(tie) {
		c.TieEmbed = outer
	} else if outer != c.TieEmbed {
		f.fail(tie, "%t contradicts text_config.%s %t", outer, tie, c.TieEmbed)
	}
	if !text.boolOr(gate, true) {
		text.fail(gate, "false is not supported: the output of attention has gates")
	}
	text.oneOf("output_gate_type", "swish", "swish", "silu") // DeltaNet's; two names of one function
	c.CentredNorms, c.Foreign = true, []string{"mtp.", "model.visual."}
	a, linear := gatedAttention(text, c), DeltaNet{deltaSizes(text), c.NormEps}
	c.hybrid(layers, linearLayers(text, layers), a, qwen35Roles, linear, qwen35DeltaRoles, ffn(c, text, layers))
	return c
}
