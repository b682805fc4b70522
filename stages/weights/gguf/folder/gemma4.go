package folder

import (
	"fmt"
	"slices"
)

// Gemma 4 as llama.cpp has it (architecture gemma4): sizes by layer, a scale of each layer's output, and the
// rotation of layers that see everything as factors, which are 1 for pairs that turn.

var gemma4Names = map[string]string{
	"ffn_norm.weight":      "pre_feedforward_layernorm.weight",
	"ffn_gate_inp.weight":  "router.proj.weight",
	"ffn_gate_exps.weight": "experts.*.gate_proj.weight",
	"ffn_up_exps.weight":   "experts.*.up_proj.weight",
	"ffn_down_exps.weight": "experts.*.down_proj.weight",
}

var gemma4Own = [][2]string{
	{"ffn_gate_inp.scale", "router.scale"},
	{"ffn_down_exps.scale", "router.per_expert_scale"},
	{"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
	{"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
	{"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
	{"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
	{"layer_output_scale.weight", "layer_scalar"},
	{"inp_gate.weight", "per_layer_input_gate.weight"},
	{"proj.weight", "per_layer_projection.weight"},
	{"post_norm.weight", "post_per_layer_input_norm.weight"},
}

var gemma4Outer = [][2]string{
	{"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
	{"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
	{"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
}

// gemma4 reads the text model. The file does not keep which ids stand for images and sounds.
func gemma4(r *reader, c map[string]any) {
	named(c, "gemma4_text", "Gemma4ForCausalLM")
	c["hidden_activation"] = "gelu_pytorch_tanh"
	layers := int(max(0, c["num_hidden_layers"].(int64)))
	windowed, err := r.Bools(r.key("attention.sliding_window_pattern"))
	if err == nil && len(windowed) != layers {
		err = fmt.Errorf("%s: %w: %d values for %d layers", r.key("attention.sliding_window_pattern"), ErrMetadata, len(windowed), layers)
	}
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	kinds := make([]string, layers)
	for i, w := range windowed {
		kinds[i] = map[bool]string{true: "sliding_attention", false: "full_attention"}[w]
	}
	c["layer_types"] = kinds
	c["head_dim"], c["global_head_dim"] = r.int("attention.key_length_swa", maxSize), r.int("attention.key_length", maxSize)
	c["sliding_window"] = r.int("attention.sliding_window", maxSize)
	shared := r.intOr("attention.shared_kv_layers", 0, int64(layers))
	c["num_kv_shared_layers"] = shared
	c["hidden_size_per_layer_input"] = r.intOr("embedding_length_per_layer_input", 0, maxSize)
	c["vocab_size_per_layer_input"] = c["vocab_size"]
	if r.has("final_logit_softcapping") {
		c["final_logit_softcapping"] = r.float("final_logit_softcapping")
	}
	c["num_key_value_heads"] = gemma4Heads(r, windowed, true)
	if full := slices.Index(windowed, false); full >= 0 {
		c["num_global_key_value_heads"] = gemma4Heads(r, windowed, false)
		c["attention_k_eq_v"] = !r.stored(fmt.Sprintf("blk.%d.attn_v.weight", full))
	}
	if r.intOr("expert_count", 0, maxExperts) > 0 {
		c["enable_moe_block"] = true
		c["num_experts"], c["top_k_experts"] = r.int("expert_count", maxExperts), r.int("expert_used_count", maxExperts)
		c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	}
	gemma4Widths(r, c, layers-int(shared), layers)
	c["rope_parameters"] = map[string]any{
		"full_attention":    map[string]any{"rope_type": "proportional", "rope_theta": r.float("rope.freq_base"), "partial_rotary_factor": turned(r)},
		"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": r.float("rope.freq_base_swa")},
	}
}

// gemma4Heads returns the number of key heads of the layers with a window, or of the others.
func gemma4Heads(r *reader, windowed []bool, window bool) int64 {
	heads := int64(-1)
	for i, n := range r.each("attention.head_count_kv", len(windowed), maxSize) {
		if windowed[i] != window {
			continue
		}
		if heads >= 0 && n != heads {
			r.errs = append(r.errs, fmt.Errorf("%s: %w: layers of one kind have %d and %d key heads", r.key("attention.head_count_kv"), ErrMetadata, heads, n))
		}
		heads = n
	}
	return max(heads, 1)
}

// gemma4Widths sets the width of the dense networks, which may be double from layer first on.
func gemma4Widths(r *reader, c map[string]any, first, layers int) {
	list := r.each("feed_forward_length", layers, maxSize)
	if len(list) == 0 {
		return
	}
	double := first < layers && list[layers-1] == 2*list[0]
	c["intermediate_size"], c["use_double_wide_mlp"] = list[0], double
	for i, n := range list {
		if want := list[0]; n != want && !(double && i >= first && n == 2*want) || double && i >= first && n == want {
			r.errs = append(r.errs, fmt.Errorf("%s: %w: %d in layer %d, %d in the first", r.key("feed_forward_length"), ErrMetadata, n, i, want))
			return
		}
	}
}

// still is the factor of pairs that do not turn; it makes their angles vanish.
const still = 1e30

// turned returns the share of the pairs of a head that turn, by rope_freqs: factors of 1, then large ones.
func turned(r *reader) float64 {
	t, ok := r.file.Tensor("rope_freqs.weight")
	if !ok {
		return 1
	}
	factors := make([]float32, min(len(t.Data)/4, maxRopeFactors))
	if err := t.Type.Decode(factors, t.Data); err != nil || len(factors) == 0 {
		r.errs = append(r.errs, fmt.Errorf("rope_freqs.weight: %w: shape %v of %s", ErrTensor, t.Shape, t.Type))
		return 1
	}
	n := 0
	for i, f := range factors {
		if f == 1 && n == i {
			n++
		} else if !(f >= still/1e6) {
			r.errs = append(r.errs, fmt.Errorf("rope_freqs.weight: %w: factor %d is %g", ErrTensor, i, f))
			return 1
		}
	}
	return float64(n) / float64(len(factors))
}

// layered sets the sizes of Gemma 4, of which some differ by layer.
func (x *exporter) layered() {
	kinds, _ := x.c["layer_types"].([]any)
	heads, full := x.int("num_key_value_heads"), x.int("num_global_key_value_heads")
	if x.c["attention_k_eq_v"] != true || full == 0 {
		full = heads
	}
	wide, shared := x.int("intermediate_size"), x.int("num_kv_shared_layers")
	windowed, keys, widths := make([]bool, len(kinds)), make([]int32, len(kinds)), make([]int32, len(kinds))
	for i, k := range kinds {
		windowed[i], keys[i], widths[i] = k == "sliding_attention", int32(heads), int32(wide)
		if !windowed[i] {
			keys[i] = int32(full)
		}
		if x.c["use_double_wide_mlp"] == true && i >= len(kinds)-shared {
			widths[i] *= 2
		}
	}
	x.add("attention.head_count_kv", keys)
	x.add("feed_forward_length", widths)
	x.add("attention.sliding_window_pattern", windowed)
	x.count("attention.sliding_window", "sliding_window")
	x.count("attention.shared_kv_layers", "num_kv_shared_layers")
	x.count("embedding_length_per_layer_input", "hidden_size_per_layer_input")
	x.real("final_logit_softcapping", "final_logit_softcapping")
	for _, s := range [][2]string{{"", "global_head_dim"}, {"_swa", "head_dim"}} {
		for _, name := range []string{"attention.key_length", "attention.value_length", "rope.dimension_count"} {
			x.count(name+s[0], s[1])
		}
	}
	ropes, _ := x.c["rope_parameters"].(map[string]any)
	for kind, name := range map[string]string{"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"} {
		p, _ := ropes[kind].(map[string]any)
		if theta, ok := p["rope_theta"].(float64); ok {
			x.add(name, float32(theta))
		}
		if part, ok := p["partial_rotary_factor"].(float64); ok && kind == "full_attention" {
			x.factors = slices.Repeat([]float32{still}, x.int("global_head_dim")/2)
			for i := range int(part * float64(len(x.factors))) {
				x.factors[i] = 1
			}
		}
	}
}
