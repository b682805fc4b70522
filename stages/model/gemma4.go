package model

import (
	"math"
	"strconv"

	"krater/kernels/device"
)

var (
	_ = register("gemma4", parseGemma4)
	_ = register("gemma4_text", parseGemma4Text)
)

// gemma4Roles are the names of Gemma 4's tensors. The network that every token passes beside the
// experts is that of the shared ones.
var gemma4Roles = Usual(gqaRoles, Roles{
	"embed": "model.language_model.embed_tokens.weight",
	"norm":  "model.language_model.norm.weight",
	"layer": "model.language_model.layers.*.",

	"per_layer_embed":      "model.language_model.embed_tokens_per_layer.weight",
	"per_layer_model_proj": "model.language_model.per_layer_model_projection.weight",
	"per_layer_model_norm": "model.language_model.per_layer_projection_norm.weight",

	"q_norm":     "self_attn.q_norm.weight",
	"k_norm":     "self_attn.k_norm.weight",
	"mixer_norm": "post_attention_layernorm.weight",
	"post_norm":  "pre_feedforward_layernorm.weight",
	"ffn_norm":   "post_feedforward_layernorm.weight",
	"scalar":     "layer_scalar",

	"per_layer_gate": "per_layer_input_gate.weight",
	"per_layer_proj": "per_layer_projection.weight",
	"per_layer_norm": "post_per_layer_input_norm.weight",

	"router":       "router.proj.weight",
	"router_norm":  "router.scale",
	"factors":      "router.per_expert_scale",
	"expert_norm":  "pre_feedforward_layernorm_2.weight",
	"experts_norm": "post_feedforward_layernorm_2.weight",
	"shared_norm":  "post_feedforward_layernorm_1.weight",
	"expert.gate":  "experts.*.gate_proj.weight",
	"expert.up":    "experts.*.up_proj.weight",
	"expert.down":  "experts.*.down_proj.weight",
	"shared.gate":  "mlp.gate_proj.weight",
	"shared.up":    "mlp.up_proj.weight",
	"shared.down":  "mlp.down_proj.weight",
})

// parseGemma4 reads Gemma 4, a model for text, images and sounds: its text_config is the language
// model's. The towers are not run.
func parseGemma4(f fields) *Config {
	text, ok := f.object("text_config")
	if !ok {
		f.require("text_config")
		return nil
	}
	text.oneOf("model_type", "gemma4_text", "gemma4_text")
	refuse(text)
	c := parseGemma4Text(text)
	c.Foreign = []string{"model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."}
	if f.has("eos_token_id") {
		c.EOS = f.ids("eos_token_id")
	}
	for _, name := range []string{"image_token_id", "video_token_id", "audio_token_id"} {
		if id := f.id(name); id >= 0 {
			c.Placeholders = append(c.Placeholders, id)
		}
	}
	return c
}

// parseGemma4Text reads the language model (Gemma4TextConfig of transformers 5.24): grouped-query
// attention over a window in most layers, with heads, key heads and rotation of their own in the
// others; norms before and after each block; experts beside a dense network, or, in the small
// models, rows for single layers and keys and values that layers share.
//
// The scale of the embedding is sqrt(hidden_size) in float32. A model that runs in BF16 rounds it.
func parseGemma4Text(f fields) *Config {
	c, layers := common(f)
	f.refuseBias("attention_bias")
	f.oneOf("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
	f.oneOf("use_bidirectional_attention", "vision", "vision") // what else it may be is no causal model
	c.EmbedScale = float32(math.Sqrt(float64(c.Hidden)))
	c.Softcap = float32(f.floatOr("final_logit_softcapping", 0, 0, 1e6))
	if !f.null("hidden_size_per_layer_input") {
		c.PerLayer = f.intOr("hidden_size_per_layer_input", 256, 0, maxHidden)
	}
	if c.PerLayer > 0 {
		if n := f.intOr("vocab_size_per_layer_input", 262144, 1, maxVocab); n != c.Vocab {
			f.clash("vocab_size_per_layer_input", []string{"vocab_size"}, "%d differs from vocab_size %d: that is not supported", n, c.Vocab)
		}
	}
	mixers := gemma4Mixers(f, c, layers)
	lenders, first := gemma4Lenders(f, mixers)
	dense := Dense{FF: f.int("intermediate_size", 1, maxFF), Act: device.GELUTanh}
	wide := dense
	if f.boolOr("use_double_wide_mlp", false) {
		wide.FF *= 2
	}
	var moe MoE
	if f.boolOr("enable_moe_block", false) {
		moe = gemma4Experts(f, dense, layers)
		c.Fused = []Fused{
			{Name: "experts.gate_up_proj", Parts: []FusedPart{{Role: "expert.gate", Step: 1}, {Role: "expert.up", First: moe.FF, Step: 1}}},
			{Name: "experts.down_proj", Parts: []FusedPart{{Role: "expert.down", Step: 1}}},
		}
		if first < layers && wide != dense {
			f.clash("use_double_wide_mlp", []string{"enable_moe_block"}, "is not supported together with enable_moe_block")
		}
	}
	c.Stack(layers, gemma4Roles, func(i int) (Mixer, FFN) {
		switch {
		case moe.Experts > 0:
			return mixers[i], moe
		case i >= first:
			return mixers[i], wide
		}
		return mixers[i], dense
	})
	for i := range c.Layers {
		l := &c.Layers[i]
		l.KV, l.NormsAfter, l.PerLayer, l.Scalar = lenders[i], true, c.PerLayer, true
	}
	return c
}

// gemma4Mixers reads the attention of all layers.
func gemma4Mixers(f fields, c *Config, layers int) []GQA {
	f.require("layer_types")
	kinds := layerTypes(f, layers, func(int) bool { return true })
	window := gqaSizes(f, c.Hidden)
	window.QKNorm, window.ValueNorm, window.NormEps, window.Scale = true, true, c.NormEps, 1
	full := window
	window.Window = slidingWindow(f, c)
	full.KeyValues = f.boolOr("attention_k_eq_v", false)
	if full.KeyValues {
		full.KVHeads = f.intOr("num_global_key_value_heads", full.KVHeads, 1, maxHeads)
	}
	full.HeadDim = f.intOr("global_head_dim", 512, 2, maxHeadDim)
	// transformers writes the sizes of single layers in another way.
	others, _ := f.object("per_layer_config")
	ropes := map[GQA]*RopeConfig{} // layers with equal attention share one
	list := make([]GQA, layers)
	if f.failed() {
		return list
	}
	for i := range list {
		a, name := window, "sliding_attention"
		if kinds(i) {
			a, name = full, "full_attention"
		}
		if own, ok := others.object(strconv.Itoa(i)); ok {
			a.HeadDim = own.intOr("head_dim", a.HeadDim, 2, maxHeadDim)
			a.KVHeads = own.intOr("num_key_value_heads", a.KVHeads, 1, maxHeads)
		}
		if a.Heads%a.KVHeads != 0 || a.HeadDim%2 != 0 {
			f.clash("layer_types", nil, "layer %d has %d heads and %d key heads of %d values", i, a.Heads, a.KVHeads, a.HeadDim)
			return list
		}
		if ropes[a] == nil {
			ropes[a] = gemma4Rope(f, name, a.HeadDim)
		}
		list[i] = a
		list[i].Rope = ropes[a]
	}
	return list
}

// gemma4Rope reads the rotation of layers of a kind. A proportional one turns whole heads, the last of
// whose pairs by no angle.
func gemma4Rope(f fields, kind string, dim int) *RopeConfig {
	r := &RopeConfig{Dim: dim, CosSinScale: 1, InvFreq: make([]float64, dim/2)}
	all, _ := f.object("rope_parameters")
	p, ok := all.object(kind)
	if !ok {
		f.fail("rope_parameters."+kind, "is missing")
		return r
	}
	r.Theta = p.float("rope_theta", 1.001, 1e12)
	turned := dim / 2
	if p.oneOf("rope_type", "default", "default", "proportional") == "proportional" {
		turned = int(p.floatOr("partial_rotary_factor", 1, 0, 1) * float64(dim) / 2)
	}
	copy(r.InvFreq, inverseFrequencies(dim, r.Theta)[:turned])
	return r
}

// gemma4Lenders reads which layers use the keys and values of others (num_kv_shared_layers): the
// last ones, from first on, those of the last layer before first with the same attention.
func gemma4Lenders(f fields, mixers []GQA) (lenders []int, first int) {
	layers := len(mixers)
	first = layers - f.intOr("num_kv_shared_layers", 0, 0, layers-1)
	last := map[GQA]int{}
	lenders = make([]int, layers)
	for i, a := range mixers {
		if lenders[i] = i; i < first {
			last[a] = i
			continue
		}
		from, ok := last[a]
		if !ok {
			f.clash("num_kv_shared_layers", []string{"layer_types"}, "no layer before %d has the attention of layer %d", first, i)
			break
		}
		lenders[i] = from
		mixers[i].Shared = true
		mixers[i].KeyValues = false
	}
	return lenders, first
}

// gemma4Experts reads the experts, whose weights are a softmax over all of them, renormalised.
func gemma4Experts(f fields, beside Dense, layers int) MoE {
	m := MoE{Experts: f.int("num_experts", 1, maxExperts), FF: f.int("moe_intermediate_size", 1, maxFF), SharedFF: beside.FF,
		Act: beside.Act, OwnNorms: true, Factors: true}
	m.Router = device.Router{Experts: m.Experts, TopK: f.int("top_k_experts", 1, maxExperts), Scoring: device.ScoreSoftmax, Scale: 1, Normalize: true}
	f.checkExperts(m, "num_experts", "top_k_experts", layers)
	return m
}
