package folder

import "fmt"

// named sets the type of a model.
func named(c map[string]any, modelType, class string) {
	c["model_type"], c["architectures"] = modelType, []string{class}
}

// dense returns a family without experts.
func dense(modelType, class string) func(*reader, map[string]any) {
	return func(_ *reader, c map[string]any) { named(c, modelType, class) }
}

// experts sets the number of experts under the name that the family has for it.
func experts(r *reader, c map[string]any, field string) {
	c[field] = r.int("expert_count", maxExperts)
	c["num_experts_per_tok"] = r.int("expert_used_count", maxExperts)
}

// llama is Llama, Mistral and, with experts, Mixtral. llama.cpp does not keep the window of
// Mistral's first models.
func llama(r *reader, c map[string]any) {
	if r.intOr("expert_count", 0, maxExperts) == 0 {
		named(c, "llama", "LlamaForCausalLM")
		return
	}
	named(c, "mixtral", "MixtralForCausalLM")
	experts(r, c, "num_local_experts")
}

func qwen2MoE(r *reader, c map[string]any) {
	named(c, "qwen2_moe", "Qwen2MoeForCausalLM")
	experts(r, c, "num_experts")
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["shared_expert_intermediate_size"] = r.int("expert_shared_feed_forward_length", maxSize)
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", false)
}

func qwen3MoE(r *reader, c map[string]any) {
	named(c, "qwen3_moe", "Qwen3MoeForCausalLM")
	experts(r, c, "num_experts")
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", true)
}

func qwen3Next(r *reader, c map[string]any) {
	named(c, "qwen3_next", "Qwen3NextForCausalLM")
	experts(r, c, "num_experts")
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["shared_expert_intermediate_size"] = r.int("expert_shared_feed_forward_length", maxSize)
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", true)
	linearAttention(r, c)
}

// qwen35 is Qwen3.5 for text alone; the positions of its text are equal in all three dimensions of
// rope.dimension_sections.
func qwen35(r *reader, c map[string]any) {
	named(c, "qwen3_5_text", "Qwen3_5ForCausalLM")
	linearAttention(r, c)
}

func qwen35MoE(r *reader, c map[string]any) {
	named(c, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")
	experts(r, c, "num_experts")
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["shared_expert_intermediate_size"] = r.int("expert_shared_feed_forward_length", maxSize)
	linearAttention(r, c)
}

// linearAttention is gated DeltaNet in most layers, gated attention in the others.
func linearAttention(r *reader, c map[string]any) {
	c["full_attention_interval"] = r.intOr("full_attention_interval", 4, maxLayers)
	c["linear_conv_kernel_dim"] = r.int("ssm.conv_kernel", maxSize)
	c["linear_key_head_dim"] = r.int("ssm.state_size", maxSize)
	c["linear_num_key_heads"] = r.int("ssm.group_count", maxSize)
	c["linear_num_value_heads"] = r.int("ssm.time_step_rank", maxSize)
	c["linear_value_head_dim"] = r.divided("ssm.inner_size", c["linear_num_value_heads"].(int64))
	partialRotary(r, c)
}

func olmoe(r *reader, c map[string]any) {
	named(c, "olmoe", "OlmoeForCausalLM")
	experts(r, c, "num_experts")
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", false)
}

// deepSeek is DeepSeek-V2 or, with a sigmoid router, DeepSeek-V3 and what is built like it. Older
// files count keys of the expanded form, newer ones of the latent form with names of their own
// for the expanded one.
func deepSeek(r *reader, c map[string]any) {
	delete(c, "head_dim")
	c["num_key_value_heads"] = c["num_attention_heads"]
	c["kv_lora_rank"] = r.int("attention.kv_lora_rank", maxSize)
	c["q_lora_rank"] = nil
	if r.intOr("attention.q_lora_rank", 0, maxSize) > 0 {
		c["q_lora_rank"] = r.int("attention.q_lora_rank", maxSize)
	}
	key, value := "attention.key_length", "attention.value_length"
	if r.has(key + "_mla") {
		key, value = key+"_mla", value+"_mla"
	}
	rope := r.int("rope.dimension_count", maxSize)
	c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"] = rope, r.int(key, maxSize)-rope, r.int(value, maxSize)
	v3 := r.intOr("expert_gating_func", softmax, sigmoid) == sigmoid
	if named(c, "deepseek_v2", "DeepseekV2ForCausalLM"); v3 {
		named(c, "deepseek_v3", "DeepseekV3ForCausalLM")
	}
	if r.intOr("expert_count", 0, maxExperts) == 0 {
		c["n_routed_experts"] = nil
		return
	}
	experts(r, c, "n_routed_experts")
	c["n_shared_experts"] = r.int("expert_shared_count", maxExperts)
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["first_k_dense_replace"] = r.intOr("leading_dense_block_count", 0, maxLayers)
	c["moe_layer_freq"] = int64(1)
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", false)
	c["routed_scaling_factor"] = float64(1)
	if r.has("expert_weights_scale") {
		c["routed_scaling_factor"] = r.float("expert_weights_scale")
	}
	groups := r.intOr("expert_group_count", 1, maxExperts)
	c["n_group"], c["topk_group"] = groups, r.intOr("expert_group_used_count", 1, maxExperts)
	switch {
	case v3:
		c["topk_method"], c["scoring_func"] = "noaux_tc", "sigmoid"
	case groups > 1:
		c["topk_method"], c["scoring_func"] = "group_limited_greedy", "softmax"
	default:
		c["topk_method"], c["scoring_func"] = "greedy", "softmax"
	}
}

// The values of expert_gating_func.
const (
	softmax = 1
	sigmoid = 2
)

func glm4MoE(r *reader, c map[string]any) {
	named(c, "glm4_moe", "Glm4MoeForCausalLM")
	experts(r, c, "n_routed_experts")
	c["n_shared_experts"] = r.int("expert_shared_count", maxExperts)
	c["moe_intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["first_k_dense_replace"] = r.intOr("leading_dense_block_count", 0, maxLayers)
	c["norm_topk_prob"] = r.boolOr("expert_weights_norm", true)
	c["routed_scaling_factor"] = float64(1)
	if r.has("expert_weights_scale") {
		c["routed_scaling_factor"] = r.float("expert_weights_scale")
	}
	c["n_group"], c["topk_group"] = r.intOr("expert_group_count", 1, maxExperts), r.intOr("expert_group_used_count", 1, maxExperts)
	c["use_qk_norm"] = r.stored("blk.0.attn_q_norm.weight")
	c["attention_bias"] = r.stored("blk.0.attn_q.bias")
	partialRotary(r, c)
}

func miniMax(r *reader, c map[string]any) {
	named(c, "minimax_m2", "MiniMaxM2ForCausalLM")
	experts(r, c, "num_local_experts")
	c["intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["rotary_dim"] = r.int("rope.dimension_count", maxSize)
	c["scoring_func"], c["use_routing_bias"], c["use_qk_norm"] = "sigmoid", true, true
	partialRotary(r, c)
}

// gptOSS: layers take turns between a sliding window and the whole context, the first one has a
// window. Other constants of the release are not kept in the file.
func gptOSS(r *reader, c map[string]any) {
	named(c, "gpt_oss", "GptOssForCausalLM")
	experts(r, c, "num_local_experts")
	c["intermediate_size"] = r.int("expert_feed_forward_length", maxSize)
	c["sliding_window"] = r.int("attention.sliding_window", maxSize)
	c["attention_bias"], c["swiglu_limit"] = true, float64(7)
	kinds := make([]string, max(0, c["num_hidden_layers"].(int64)))
	for i := range kinds {
		kinds[i] = [...]string{"sliding_attention", "full_attention"}[i%2]
	}
	c["layer_types"] = kinds
	if s, ok := c["rope_scaling"].(map[string]any); ok {
		s["truncate"] = false
	}
}

// partialRotary sets how much of a head is rotated.
func partialRotary(r *reader, c map[string]any) {
	dim, ok := c["head_dim"].(int64)
	if heads := c["num_attention_heads"].(int64); !ok && heads > 0 {
		dim = c["hidden_size"].(int64) / heads
	}
	if rope := r.int("rope.dimension_count", maxSize); dim > 0 {
		c["partial_rotary_factor"] = float64(rope) / float64(dim)
	}
}

// divided is a hyperparameter divided by n, which must divide it.
func (r *reader) divided(name string, n int64) int64 {
	x := r.int(name, maxSize)
	if n == 0 || x%n != 0 {
		r.errs = append(r.errs, fmt.Errorf("%s: %w: %d is not divisible by %d", r.key(name), ErrMetadata, x, n))
		return 0
	}
	return x / n
}
