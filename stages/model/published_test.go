package model

import (
	"math"
	"testing"
)

// published are the sizes in config.json of published models, and their parameters in billions.
var published = map[string]struct {
	config   string
	billions float64
}{
	"Llama-3.1-8B": {`{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
		"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
		"rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
		"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}`, 8.03},
	"Mistral-7B-v0.1": {`{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
		"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
		"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096}`, 7.24},
	"Mixtral-8x7B-v0.1": {`{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
		"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
		"rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null}`, 46.7},
	"OLMoE-1B-7B-0924": {`{"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
		"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304, "max_position_embeddings": 4096,
		"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "clip_qkv": null}`, 6.92},
	"DeepSeek-V3": {`{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
		"num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
		"rms_norm_eps": 1e-06, "rope_theta": 10000, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
		"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "q_lora_rank": 1536, "kv_lora_rank": 512,
		"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
		"moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
		"moe_layer_freq": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
		"num_nextn_predict_layers": 1}`, 671},
	"Kimi-K2": {`{"model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
		"num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840, "max_position_embeddings": 131072,
		"rms_norm_eps": 1e-06, "rope_theta": 50000.0, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
		"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "q_lora_rank": 1536, "kv_lora_rank": 512,
		"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384, "n_shared_experts": 1,
		"moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
		"moe_layer_freq": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
		"num_nextn_predict_layers": 0}`, 1026},
	"GLM-4.5-Air": {`{"model_type": "glm4_moe", "attention_bias": true, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944,
		"num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552, "max_position_embeddings": 131072,
		"rms_norm_eps": 1e-05, "rope_theta": 1000000, "partial_rotary_factor": 0.5, "use_qk_norm": false, "n_routed_experts": 128,
		"n_shared_experts": 1, "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
		"first_k_dense_replace": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0, "num_nextn_predict_layers": 1}`, 106.9},
	"GLM-4.5": {`{"model_type": "glm4_moe", "attention_bias": true, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 12288,
		"num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552, "max_position_embeddings": 131072,
		"rms_norm_eps": 1e-05, "rope_theta": 1000000, "partial_rotary_factor": 0.5, "use_qk_norm": true, "n_routed_experts": 160,
		"n_shared_experts": 1, "moe_intermediate_size": 1536, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
		"first_k_dense_replace": 3, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1}`, 353},
	"MiniMax-M2": {`{"model_type": "minimax_m2", "head_dim": 128, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
		"num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 200064, "max_position_embeddings": 196608, "rms_norm_eps": 1e-06,
		"rope_theta": 5000000, "rotary_dim": 64, "num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid",
		"use_qk_norm": true, "qk_norm_type": "per_layer", "use_routing_bias": true, "shared_intermediate_size": 0, "use_mtp": true,
		"num_mtp_modules": 3, "mtp_transformer_layers": 1}`, 228.7},
	"Qwen1.5-MoE-A2.7B": {`{"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
		"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "max_position_embeddings": 8192,
		"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
		"shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "norm_topk_prob": false, "use_sliding_window": false}`, 14.3},
}

// TestPublished: published models have the tensors that their publishers count, and the reader
// of sizes alone finds nearly as many.
func TestPublished(t *testing.T) {
	for name, x := range published {
		c, err := Parse([]byte(x.config))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n := parameters(c) / 1e9; math.Abs(n-x.billions) > 0.005*x.billions {
			t.Errorf("%s: %.3f billion parameters, want %g", name, n, x.billions)
		}
		s, err := Sizes([]byte(x.config))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a, b := parameters(s), parameters(c); math.Abs(a-b) > 1e-4*b || s.MoE.SharedFF != c.MoE.SharedFF || s.MoE.Router.TopK != c.MoE.Router.TopK {
			t.Errorf("%s: %.0f parameters by the sizes alone, %.0f in the files", name, a, b)
		}
	}
}
