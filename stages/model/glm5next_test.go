package model

import (
	"fmt"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseGLM5Next pins every field.
func TestParseGLM5Next(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "glm5_next", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	act := device.Activation{Limit: 1.5}
	moe := MoE{Experts: 7, FF: 32, SharedFF: 32, Correction: true, Act: act, Router: device.Router{Experts: 7, TopK: 3, Scoring: device.ScoreSigmoid,
		Groups: 1, TopGroups: 1, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5}}
	want := &Config{
		Family: "glm5_next", Hidden: 96, Vocab: 320, MaxContext: 1048576, NormEps: 1e-5, DType: tensor.BF16,
		EOS: []int32{1, 3}, Pad: 2, Streams: Streams{Count: 3, Iterations: 4, Eps: 1e-6, MeanEnd: true},
	}
	a := MLA{Heads: 3, QRank: 64, KVRank: 64, Nope: 32, VDim: 64, LatentEps: 1e-5, Scale: float32(softmax(32)),
		Index: Indexer{Heads: 6, Dim: 32, TopK: 2, Pool: 4, NormEps: 1e-6}}
	d := DeltaNet{device.DeltaNet{KeyHeads: 3, ValueHeads: 3, KeyDim: 32, ValueDim: 32, Taps: 4, Floor: -5, SigmoidGate: true}, 1e-5}
	want.Stack(3, glm5NextRoles, func(i int) (Mixer, FFN) {
		return []Mixer{d, a, d}[i], []FFN{Dense{FF: 160, Act: act}, moe, moe}[i]
	})
	want.Layers[0].Roles, want.Layers[2].Roles = glm5NextKDARoles, glm5NextKDARoles
	want.rename(func(name string) string {
		if name == "lm_head.weight" {
			return name
		}
		return "model.language_model." + name[len("model."):]
	})
	want.Foreign = append(want.Foreign, "model.visual.")
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if k, shared := c.Selection(); k != 11 || shared {
		t.Errorf("%d positions, shared %t", k, shared)
	}
}

// TestGLM5NextStates: what a layer keeps of a sequence.
func TestGLM5NextStates(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "glm5_next", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]State{
		{{Kind: Recurrent, Width: 288, Rows: 4}, {Kind: Recurrent, Width: 32, Rows: 96}},
		{{Kind: Paged, Width: 64, Group: 64, Chosen: true}, {Kind: Paged, Width: 32, Group: 32}, {Kind: Recurrent, Width: 64, Rows: 4}},
	} {
		if got := c.Layers[i].State(c.Hidden); !reflect.DeepEqual(got, want) {
			t.Errorf("layer %d: %+v, want %+v", i, got, want)
		}
	}
}

// TestBrokenGLM5Next names the field that cannot be used.
func TestBrokenGLM5Next(t *testing.T) {
	base := readFile(t, goldens, "glm5_next", "config.json")
	for _, x := range []brokenCase{
		{m{"text_config": ""}, "text_config"},
		{m{"text_config.model_type": `"glm4_moe"`}, "text_config.model_type"},
		{m{"text_config.mhc": "false"}, "text_config.mhc"},
		{m{"text_config.mla_use_nope": "false"}, "text_config.mla_use_nope"},
		{m{"text_config.hc_mult": ""}, "text_config.hc_mult"},
		{m{"text_config.hc_mult": "65"}, "text_config.hc_mult"},
		{m{"text_config.hc_eps": "2"}, "text_config.hc_eps"},
		{m{"text_config.hc_sinkhorn_iters": "0"}, "text_config.hc_sinkhorn_iters"},
		{m{"text_config.swiglu_limit": ""}, "text_config.swiglu_limit"},
		{m{"text_config.scoring_func": `"softmax"`}, "text_config.scoring_func"},
		{m{"text_config.moe_router_dtype": `"bfloat16"`}, "text_config.moe_router_dtype"},
		{m{"text_config.layer_types": ""}, "text_config.layer_types"},
		{m{"text_config.layer_types": `["linear_attention","sliding_attention","linear_attention"]`}, "text_config.layer_types"},
		{m{"text_config.mlp_layer_types": `["sparse","sparse","sparse"]`}, "text_config.mlp_layer_types"},
		{m{"text_config.qk_rope_head_dim": "16", "text_config.qk_head_dim": "48"}, "text_config.qk_rope_head_dim"},
		{m{"text_config.q_lora_rank": "null"}, "text_config.q_lora_rank"},
		{m{"text_config.attention_bias": "true"}, "text_config.attention_bias"},
		{m{"text_config.index_kpool": ""}, "text_config.index_kpool"},
		{m{"text_config.index_kpool": "3"}, "text_config.index_topk"},
		{m{"text_config.index_kpool_compress": "false"}, "text_config.index_kpool_compress"},
		{m{"text_config.index_kpool_always_select_tail": "false"}, "text_config.index_kpool_always_select_tail"},
		{m{"text_config.indexer_types": `["full","shared","full"]`}, "text_config.indexer_types"},
		{m{"text_config.linear_attn_config": ""}, "text_config.linear_attn_config"},
		{m{"text_config.linear_attn_config.gate_lower_bound": ""}, "text_config.linear_attn_config.gate_lower_bound"},
		{m{"text_config.linear_attn_config.gate_lower_bound": "1"}, "text_config.linear_attn_config.gate_lower_bound"},
		{m{"text_config.linear_attn_config.short_conv_kernel_size": "17"}, "text_config.linear_attn_config.short_conv_kernel_size"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
