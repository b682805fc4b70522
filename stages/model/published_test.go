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
