package model

import (
	"fmt"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseDeepSeekV4 pins every field.
func TestParseDeepSeekV4(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "deepseek_v4", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Ropes() {
		r.InvFreq = nil // held to the golden by TestGoldens
	}
	want := &Config{
		Family: "deepseek_v4", Hidden: 96, Vocab: 320, MaxContext: 1 << 20, NormEps: 1e-6, DType: tensor.BF16, EOS: []int32{1}, Pad: -1,
		Streams: Streams{Count: 3, Iterations: 3, Eps: 1e-6}, Foreign: []string{"mtp."},
	}
	a := Compressed{Heads: 6, HeadDim: 64, RopeDim: 16, QRank: 64, Groups: 3, OutRank: 32, Window: 8, NormEps: 1e-6}
	rope := func(theta float64) *RopeConfig {
		return &RopeConfig{Dim: 16, Theta: theta, Interleaved: true, CosSinScale: 1}
	}
	chosen, heavy := a, a
	a.Rope = rope(1e4)
	chosen.Rope = rope(160000)
	heavy.Rope, heavy.Ratio = chosen.Rope, 16
	chosen.Ratio, chosen.Overlap, chosen.Index = 4, true, Indexer{Heads: 6, Dim: 32, TopK: 3}
	moe := MoE{Experts: 7, FF: 32, SharedFF: 32, Correction: true, Act: device.Activation{Limit: 1.5},
		Router: device.Router{Experts: 7, TopK: 3, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 1.5}}
	byToken := moe
	byToken.Correction, byToken.Vocab = false, 320
	want.Stack(3, deepSeekV4Roles, func(i int) (Mixer, FFN) {
		return []Mixer{a, chosen, heavy}[i], []FFN{byToken, moe, moe}[i]
	})
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenDeepSeekV4 names the field that cannot be used.
func TestBrokenDeepSeekV4(t *testing.T) {
	for style, cases := range map[string][]brokenCase{
		"config.json": {
			{m{"hc_mult": ""}, "hc_mult"},
			{m{"hc_mult": "65"}, "hc_mult"},
			{m{"hc_sinkhorn_iters": "0"}, "hc_sinkhorn_iters"},
			{m{"hc_eps": "-1"}, "hc_eps"},
			{m{"attention_bias": "true"}, "attention_bias"},
			{m{"head_dim": ""}, "head_dim"},
			{m{"head_dim": "8"}, "qk_rope_head_dim"},
			{m{"qk_rope_head_dim": "7"}, "qk_rope_head_dim"},
			{m{"q_lora_rank": "null"}, "q_lora_rank"},
			{m{"o_groups": "4"}, "o_groups"},
			{m{"o_lora_rank": "0"}, "o_lora_rank"},
			{m{"num_key_value_heads": "2"}, "num_key_value_heads"},
			{m{"sliding_window": ""}, "sliding_window"},
			{m{"compress_ratios": ""}, "compress_ratios"},
			{m{"compress_ratios": "[0,4]"}, "compress_ratios"},
			{m{"compress_ratios": "[0,4,-1]"}, "compress_ratios"},
			{m{"compress_ratios": "[0,4,5000]"}, "compress_ratios"},
			{m{"compress_rope_theta": ""}, "compress_rope_theta"},
			{m{"rope_scaling.type": `"linear"`}, "rope_scaling.beta_fast rope_scaling.beta_slow rope_scaling.type"},
			{m{"rope_scaling.attention_factor": "2"}, "rope_scaling.attention_factor"},
			{m{"rope_scaling.original_max_position_embeddings": "2097152"}, "max_position_embeddings"},
			{m{"index_head_dim": "8"}, "index_head_dim"},
			{m{"index_topk": "0"}, "index_topk"},
			{m{"swiglu_limit": ""}, "swiglu_limit"},
			{m{"scoring_func": `"sigmoid"`}, "scoring_func"},
			{m{"topk_method": `"greedy"`}, "topk_method"},
			{m{"norm_topk_prob": "false"}, "norm_topk_prob"},
			{m{"num_experts_per_tok": "8"}, "num_experts_per_tok"},
			{m{"n_shared_experts": ""}, "n_shared_experts"},
			{m{"num_hash_layers": ""}, "num_hash_layers"},
		},
		"config.transformers5.json": {
			{m{"layer_types": `["sliding_attention","full_attention","sliding_attention"]`}, "layer_types"},
			{m{"compress_rates": ""}, "compress_rates"},
			{m{"compress_rates.compressed_sparse_attention": "8"}, "compress_rates.compressed_sparse_attention"},
			{m{"compress_rates.heavily_compressed_attention": ""}, "compress_rates.heavily_compressed_attention"},
			{m{"mlp_layer_types": `["hash_moe","dense","moe"]`}, "mlp_layer_types"},
			{m{"rope_parameters.main": `{"rope_theta":10000,"rope_type":"yarn"}`}, "rope_parameters.main"},
			{m{"rope_parameters.compress": `{"rope_theta":1000}`}, "rope_parameters.compress"},
		},
	} {
		base := readFile(t, goldens, "deepseek_v4", style)
		for _, x := range cases {
			t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
		}
	}
}
