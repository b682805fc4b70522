package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseQwen2MoE pins every field.
func TestParseQwen2MoE(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "qwen2_moe", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "qwen2_moe", Hidden: 128, Vocab: 512, MaxContext: 8192, NormEps: 1e-6, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, Bias: true, Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 32, Theta: 1e6, CosSinScale: 1}}
	moe := MoE{Experts: 8, FF: 32, SharedFF: 64, SharedGate: true, Router: device.Router{Experts: 8, TopK: 3, Scoring: device.ScoreSoftmax, Scale: 1}}
	want.Stack(3, qwen2MoERoles, func(int) (Mixer, FFN) { return a, moe })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenQwen2MoE names the field that cannot be used.
func TestBrokenQwen2MoE(t *testing.T) {
	base := readFile(t, goldens, "qwen2_moe", "config.json")
	for _, x := range []brokenCase{
		{m{"shared_expert_intermediate_size": ""}, "shared_expert_intermediate_size"},
		{m{"shared_expert_intermediate_size": "0"}, "shared_expert_intermediate_size"},
		{m{"num_experts": ""}, "num_experts"},
		{m{"num_experts": "2"}, "num_experts_per_tok"},
		{m{"moe_intermediate_size": "null"}, "moe_intermediate_size"},
		{m{"intermediate_size": ""}, "intermediate_size"},
		{m{"decoder_sparse_step": "0"}, "decoder_sparse_step"},
		{m{"mlp_only_layers": "[-1]"}, "mlp_only_layers"},
		{m{"qkv_bias": "1"}, "qkv_bias"},
		{m{"norm_topk_prob": `"no"`}, "norm_topk_prob"},
		{m{"use_sliding_window": "true"}, "use_sliding_window"},
		{m{"head_dim": "31"}, "head_dim"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestVariantsQwen2MoE checks settings the golden does not have.
func TestVariantsQwen2MoE(t *testing.T) {
	c, err := Parse(edit(t, readFile(t, goldens, "qwen2_moe", "config.json"),
		m{"qkv_bias": "false", "norm_topk_prob": "true", "mlp_only_layers": "[1]", "decoder_sparse_step": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	if c.Layers[0].Mixer.(GQA).Bias || !c.MoE.Router.Normalize || !c.MoELayer(0) || c.MoELayer(1) || !c.MoELayer(2) {
		t.Errorf("%+v", c)
	}
}
