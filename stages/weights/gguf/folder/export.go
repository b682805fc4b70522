package folder

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"krater/stages/weights/gguf"
)

// Release is a tensor of a release: its name and shape.
type Release struct {
	Name  string
	Shape []int
}

// Place is a tensor of a GGUF file: the rows of From, tensors of the release, one after the other
// (several: one of each expert). Shape is llama.cpp's. Where a tensor of the release
// is cut, Part is the name of the piece, and several places have the same From.
type Place struct {
	Name   string
	Shape  []int
	From   []string
	Part   string    // "": whole tensors
	Values []float32 // of a tensor that no tensor of the release has: F32
	Scale  string    // the tensor beside one of NVFP4 that it is multiplied by: F32 of one number, or one for each expert; "": none
}

// scaled are the tensors beside which llama.cpp reads a scale, but for two that cut makes.
var scaled = []string{
	"attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_gate.", "ffn_up.", "ffn_down.", "ffn_gate_shexp.", "ffn_up_shexp.", "ffn_down_shexp.",
	"ffn_gate_exps.", "ffn_up_exps.", "ffn_down_exps.", "ssm_in.", "ssm_out.", "output.",
}

// architectures are llama.cpp's names of families, by model_type.
var architectures = map[string]string{
	"qwen2": "qwen2", "qwen2_moe": "qwen2moe", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next", "olmoe": "olmoe",
	"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2",
	"deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa", "glm4_moe": "glm4moe", "minimax_m2": "minimax-m2", "gpt_oss": "gpt-oss",
	"gemma4": "gemma4", "gemma4_text": "gemma4",
}

// postAttention are the architectures whose second norm of a layer is post_attention_norm.
var postAttention = map[string]bool{"qwen3next": true, "glm4moe": true, "gpt-oss": true, "gemma4": true}

// exporter makes the metadata and the tensors of a file from a release.
type exporter struct {
	c    map[string]any
	arch string
	meta []gguf.Pair

	factors []float32 // of rope_freqs.weight; nil: none
}

// Export returns the metadata of the GGUF file that llama.cpp makes of a release, without those of
// its tokenizer, and its tensors. config is config.json, list the tensors of the release. Layers
// that predict further tokens are left out. A family that is not written is ErrArchitecture; a
// tensor without a place is ErrTensor.
func Export(config []byte, list []Release) ([]gguf.Pair, []Place, error) {
	x := &exporter{}
	if err := json.Unmarshal(config, &x.c); err != nil {
		return nil, nil, err
	}
	kind, _ := x.c["model_type"].(string)
	x.arch = architectures[kind]
	if x.arch == "" {
		return nil, nil, fmt.Errorf("%w: no GGUF file is written of the family %.40q", ErrArchitecture, kind)
	}
	if text, ok := x.c["text_config"].(map[string]any); ok {
		x.c = text
	}
	x.meta = []gguf.Pair{{Key: "general.architecture", Value: x.arch}}
	x.sizes()
	x.rope()
	x.experts()
	x.family(list)
	for _, t := range [][2]string{{"bos", "bos_token_id"}, {"eos", "eos_token_id"}, {"padding", "pad_token_id"}} {
		id := x.c[t[1]]
		if many, ok := id.([]any); ok && len(many) > 0 {
			id = many[0]
		}
		if n, ok := id.(float64); ok {
			x.meta = append(x.meta, gguf.Pair{Key: "tokenizer.ggml." + t[0] + "_token_id", Value: uint32(n)})
		}
	}
	places, err := x.places(list)
	if x.factors != nil {
		places = append(places, Place{Name: "rope_freqs.weight", Shape: []int{len(x.factors)}, Values: x.factors})
	}
	return x.meta, places, err
}

// add sets a hyperparameter.
func (x *exporter) add(name string, v any) {
	x.meta = append(x.meta, gguf.Pair{Key: x.arch + "." + name, Value: v})
}

// get returns the first of some fields that is a number.
func (x *exporter) get(fields ...string) (n float64, ok bool) {
	for _, f := range fields {
		if n, ok := x.c[f].(float64); ok {
			return n, true
		}
	}
	return 0, false
}

// int returns a whole field, 0 where it is absent.
func (x *exporter) int(field string) int {
	n, _ := x.get(field)
	return int(n)
}

// count sets a whole hyperparameter if one of the fields is there.
func (x *exporter) count(name string, fields ...string) {
	if n, ok := x.get(fields...); ok {
		x.add(name, uint32(n))
	}
}

// real sets a hyperparameter if the field is there.
func (x *exporter) real(name, field string) {
	if n, ok := x.get(field); ok {
		x.add(name, float32(n))
	}
}

// sizes are the hyperparameters of all families.
func (x *exporter) sizes() {
	x.count("block_count", "num_hidden_layers")
	x.count("context_length", "max_position_embeddings")
	x.count("embedding_length", "hidden_size")
	x.count("attention.head_count", "num_attention_heads")
	x.real("attention.layer_norm_rms_epsilon", "rms_norm_eps")
	if families[x.arch].varied {
		x.layered()
		return
	}
	x.count("feed_forward_length", "intermediate_size")
	theta, ok := x.get("rope_theta")
	if !ok {
		theta, ok = x.positions()["rope_theta"].(float64)
	}
	if ok {
		x.add("rope.freq_base", float32(theta))
	}
	if families[x.arch].latent {
		x.add("attention.head_count_kv", uint32(1))
		return
	}
	x.count("attention.head_count_kv", "num_key_value_heads")
	x.count("attention.key_length", "head_dim")
	x.count("attention.value_length", "head_dim")
}

// positions returns the settings of rotations in config.json, under the name that its version has for them.
func (x *exporter) positions() map[string]any {
	s, ok := x.c["rope_scaling"].(map[string]any)
	if !ok {
		s, _ = x.c["rope_parameters"].(map[string]any)
	}
	return s
}

// rope is the scaling of positions.
func (x *exporter) rope() {
	s := x.positions()
	kind, ok := s["rope_type"].(string)
	if !ok {
		kind, _ = s["type"].(string)
	}
	if kind != "yarn" && kind != "linear" {
		return
	}
	top := x.c
	defer func() { x.c = top }()
	x.c = s
	x.add("rope.scaling.type", kind)
	x.real("rope.scaling.factor", "factor")
	x.count("rope.scaling.original_context_length", "original_max_position_embeddings")
	x.real("rope.scaling.yarn_beta_fast", "beta_fast")
	x.real("rope.scaling.yarn_beta_slow", "beta_slow")
	if m, ok := x.get("mscale_all_dim"); ok && families[x.arch].latent {
		x.add("rope.scaling.yarn_log_multiplier", float32(0.1*m))
	}
}

// experts are the hyperparameters of experts and their router.
func (x *exporter) experts() {
	if _, ok := x.get("num_local_experts", "num_experts", "n_routed_experts"); !ok {
		return
	}
	x.count("expert_count", "num_local_experts", "num_experts", "n_routed_experts")
	x.count("expert_used_count", "num_experts_per_tok", "top_k_experts")
	x.count("expert_group_count", "n_group")
	x.count("expert_group_used_count", "topk_group")
	x.count("expert_shared_count", "n_shared_experts")
	x.count("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
	x.count("leading_dense_block_count", "first_k_dense_replace")
	x.real("expert_weights_scale", "routed_scaling_factor")
	switch x.arch {
	case "gpt-oss", "minimax-m2":
		x.count("expert_feed_forward_length", "intermediate_size")
	default:
		x.count("expert_feed_forward_length", "moe_intermediate_size")
	}
	switch {
	case x.c["scoring_func"] == "sigmoid" || x.arch == "glm4moe":
		x.add("expert_gating_func", uint32(sigmoid))
	case x.c["scoring_func"] == "softmax":
		x.add("expert_gating_func", uint32(softmax))
	}
	if norm, ok := x.c["norm_topk_prob"].(bool); ok && (norm && families[x.arch].latent || x.arch == "glm4moe") {
		x.add("expert_weights_norm", norm)
	}
}

// family sets the hyperparameters of single architectures.
func (x *exporter) family(list []Release) {
	head := x.int("head_dim")
	if head == 0 {
		head = x.int("hidden_size") / max(1, x.int("num_attention_heads"))
	}
	rotary := func(usual float64) {
		part, ok := x.get("partial_rotary_factor")
		if !ok {
			part = usual
		}
		x.add("rope.dimension_count", uint32(float64(head)*part))
	}
	switch x.arch {
	case "qwen3next":
		x.count("ssm.conv_kernel", "linear_conv_kernel_dim")
		x.count("ssm.state_size", "linear_key_head_dim")
		x.count("ssm.group_count", "linear_num_key_heads")
		x.count("ssm.time_step_rank", "linear_num_value_heads")
		x.add("ssm.inner_size", uint32(x.int("linear_value_head_dim")*x.int("linear_num_value_heads")))
		interval := max(x.int("full_attention_interval"), 0)
		if interval == 0 {
			interval = 4
		}
		x.add("full_attention_interval", uint32(interval))
		rotary(0.25)
	case "glm4moe":
		rotary(0.5)
	case "minimax-m2":
		x.count("rope.dimension_count", "rotary_dim")
	case "gpt-oss":
		x.count("attention.sliding_window", "sliding_window")
	case "deepseek2", "deepseek32", "glm-dsa":
		if x.arch != "deepseek2" {
			x.indexer(list, x.arch == "glm-dsa")
		}
		rank, rope := x.int("kv_lora_rank"), x.int("qk_rope_head_dim")
		x.count("vocab_size", "vocab_size")
		x.count("attention.q_lora_rank", "q_lora_rank")
		x.count("attention.kv_lora_rank", "kv_lora_rank")
		x.add("attention.key_length", uint32(rank+rope))
		x.add("attention.value_length", uint32(rank))
		x.add("attention.key_length_mla", uint32(x.int("qk_nope_head_dim")+rope))
		x.count("attention.value_length_mla", "v_head_dim")
		x.add("rope.dimension_count", uint32(rope))
	}
}

// places gives every tensor of the release its place in the file.
func (x *exporter) places(list []Release) ([]Place, error) {
	at, stored := map[string]int{}, x.names()
	var places []Place
	put := func(p Place) {
		at[p.Name] = len(places)
		places = append(places, p)
	}
	for _, t := range list {
		if x.c["tie_word_embeddings"] == true && t.Name == "lm_head.weight" {
			continue
		}
		layer, rest := "", t.Name
		if within := families[x.arch].within; within != "" {
			rest = strings.Replace(t.Name, within, "model.", 1)
		}
		if _, err := fmt.Sscanf(rest, "model.layers.%s", &rest); err == nil {
			layer, rest, _ = strings.Cut(rest, ".")
			layer = "blk." + layer + "."
		}
		if cut := x.cut(layer, rest, t); cut != nil {
			for _, p := range cut {
				put(p)
			}
			continue
		}
		before, expert, routed := strings.Cut("."+rest, ".experts.")
		if routed {
			_, after, _ := strings.Cut(expert, ".")
			rest = strings.TrimPrefix(before+".experts.*."+after, ".")
		}
		name, ok := stored[rest]
		if !ok {
			return nil, fmt.Errorf("%w: %q has no place in a file of the architecture %s", ErrTensor, t.Name, x.arch)
		}
		if i, more := at[layer+name]; more {
			places[i].From = append(places[i].From, t.Name)
			places[i].Shape[0]++
			continue
		}
		p := Place{Name: layer + name, From: []string{t.Name}}
		if stem, ok := strings.CutSuffix(name, "weight"); ok && slices.Contains(scaled, stem) {
			p.Scale = layer + stem + "scale"
		}
		for _, n := range t.Shape {
			if n > 1 || routed {
				p.Shape = append(p.Shape, n)
			}
		}
		if routed || len(p.Shape) == 0 {
			p.Shape = append([]int{1}, p.Shape...)
		}
		put(p)
	}
	return places, nil
}

// names are the names in the file by those in the release, both without the layer.
func (x *exporter) names() map[string]string {
	stored, f := map[string]string{}, families[x.arch]
	for _, o := range slices.Concat(outer, f.outer) {
		stored[o[1]] = o[0]
	}
	for _, u := range slices.Concat(usual, f.own) {
		name := u[1]
		other, renamed := f.renamed[u[0]]
		if renamed {
			name = other
		}
		if renamed || u[0] != "ffn_norm.weight" && u[0] != "post_attention_norm.weight" || postAttention[x.arch] == (u[0] == "post_attention_norm.weight") {
			stored[name] = u[0]
		}
	}
	return stored
}

// cut returns the pieces of a tensor that llama.cpp cuts; nil for others.
func (x *exporter) cut(layer, rest string, t Release) []Place {
	from := []string{t.Name}
	switch rest {
	case "self_attn.kv_b_proj.weight":
		heads, rank := x.int("num_attention_heads"), x.int("kv_lora_rank")
		return []Place{
			{layer + "attn_k_b.weight", []int{heads, rank, x.int("qk_nope_head_dim")}, from, "k_b", nil, ""},
			{layer + "attn_v_b.weight", []int{heads, x.int("v_head_dim"), rank}, from, "v_b", nil, ""},
		}
	case "linear_attn.in_proj_qkvz.weight":
		values := x.int("linear_num_value_heads") * x.int("linear_value_head_dim")
		return []Place{
			{layer + "attn_qkv.weight", []int{t.Shape[0] - values, t.Shape[1]}, from, "qkv", nil, ""},
			{layer + "attn_gate.weight", []int{values, t.Shape[1]}, from, "z", nil, ""},
		}
	}
	return nil
}
