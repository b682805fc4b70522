package model

import "strings"

var (
	_ = register("qwen3_5", parseQwen35)
	_ = register("qwen3_5_text", parseQwen35Text)
	_ = register("qwen3_5_moe", parseQwen35MoE)
	_ = register("qwen3_5_moe_text", parseQwen35MoEText)
)

// parseQwen35 reads the dense models of the Qwen3.5 family for text and images (Qwen3.5-27B).
func parseQwen35(f fields) *Config { return qwen35Text(f, "qwen3_5_text", parseQwen35Text) }

// parseQwen35MoE reads the mixtures of the Qwen3.5 family for text and images (Qwen3.5-35B-A3B;
// Qwen3.6-35B-A3B too).
func parseQwen35MoE(f fields) *Config {
	return qwen35Text(f, "qwen3_5_moe_text", parseQwen35MoEText)
}

// parseQwen35Text reads a dense model that is stored without the part for images.
func parseQwen35Text(f fields) *Config {
	return qwen35(f, func(*Config, int) FFN { return denseFF(f) })
}

// parseQwen35MoEText reads a mixture that is stored without the part for images: every layer has
// experts with a shared one. The chosen ones' weights always sum to 1, no field says so. Plain releases
// have the experts of a layer fused, those in FP8 one by one.
func parseQwen35MoEText(f fields) *Config {
	return qwen35(f, func(c *Config, layers int) FFN {
		return fusedExperts(f, c, layers, true)
	})
}

// fusedExperts reads experts with a shared one, which plain releases have fused.
func fusedExperts(f fields, c *Config, layers int, normalize bool) MoE {
	moe := softmaxExperts(f, expertsField(f), "moe_intermediate_size", normalize, layers)
	moe.SharedFF, moe.SharedGate = f.int("shared_expert_intermediate_size", 1, maxFF), true
	c.Fused = []Fused{
		{Name: "mlp.experts.gate_up_proj", Parts: []FusedPart{{Role: "expert.gate", Step: 1}, {Role: "expert.up", First: moe.FF, Step: 1}}},
		{Name: "mlp.experts.down_proj", Parts: []FusedPart{{Role: "expert.down", Step: 1}}},
	}
	return moe
}

// qwen35Text reads a model for text and images by its text_config, of model_type kind. The names of the
// language model's tensors begin with model.language_model then. The vision tower is not run. The positions of
// text are equal in all three dimensions of mrope_section, so that it does not matter.
func qwen35Text(f fields, kind string, parse family) *Config {
	text, ok := f.object("text_config")
	if !ok {
		f.require("text_config")
		return nil
	}
	text.oneOf("model_type", kind, kind)
	refuse(text)
	c := parse(text)
	const tie = "tie_word_embeddings"
	if outer := f.boolOr(tie, c.TieEmbed); !text.has(tie) {
		c.TieEmbed = outer
	} else if outer != c.TieEmbed {
		f.fail(tie, "%t contradicts text_config.%s %t", outer, tie, c.TieEmbed)
	}
	if c.Draft != nil && c.TieEmbed {
		c.Draft.Roles["head"] = c.Draft.Roles["embed"]
	}
	c.rename(func(name string) string {
		if rest, ok := strings.CutPrefix(name, "model."); ok {
			return "model.language_model." + rest
		}
		return name
	})
	c.Foreign = append(c.Foreign, "model.visual.")
	return c
}

// qwen35 reads a language model that is Qwen3-Next's but for the order of DeltaNet's columns and the
// network, which ffn reads. The draft layer (mtp) is not run with the model.
func qwen35(f fields, ffn func(c *Config, layers int) FFN) *Config {
	c, layers := common(f)
	const gate = "attn_output_gate"
	if !f.boolOr(gate, true) {
		f.fail(gate, "false is not supported: the output of attention has gates")
	}
	f.oneOf("output_gate_type", "swish", "swish", "silu") // DeltaNet's; two names of one function
	c.CentredNorms, c.Foreign = true, []string{"mtp."}
	a, linear := gatedAttention(f, c), DeltaNet{deltaSizes(f), c.NormEps}
	net := ffn(c, layers)
	c.hybrid(layers, linearLayers(f, layers), a, qwen3NextRoles, linear, qwen3DeltaRoles, net)
	next, own := f.intOr("mtp_num_hidden_layers", 0, 0, maxLayers), f.boolOr("mtp_use_dedicated_embeddings", false)
	if next > 0 && !own {
		c.Draft = c.qwenDraft(a, qwen3NextRoles, net)
	}
	return c
}
