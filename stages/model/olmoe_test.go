package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseOLMoE pins every field.
func TestParseOLMoE(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "olmoe", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "olmoe", Hidden: 128, Vocab: 512, MaxContext: 4096, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: 1,
	}
	a := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, QKNorm: true, WholeNorm: true, NormEps: 1e-5, Scale: float32(1 / math.Sqrt(32)),
		Rope: &RopeConfig{Dim: 32, Theta: 1e4, CosSinScale: 1}}
	moe := MoE{Experts: 16, FF: 32, Router: device.Router{Experts: 16, TopK: 4, Scoring: device.ScoreSoftmax, Scale: 1}}
	want.Stack(3, qwen3Roles, func(int) (Mixer, FFN) { return a, moe })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenOLMoE names the field that cannot be used.
func TestBrokenOLMoE(t *testing.T) {
	base := readFile(t, goldens, "olmoe", "config.json")
	for _, x := range []brokenCase{
		{m{"num_experts": ""}, "num_experts"},
		{m{"num_experts": "3"}, "num_experts_per_tok"},
		{m{"num_experts_per_tok": "null"}, "num_experts_per_tok"},
		{m{"intermediate_size": "0"}, "intermediate_size"},
		{m{"clip_qkv": "8.0"}, "clip_qkv"},
		{m{"head_dim": "16"}, "head_dim"},
		{m{"norm_topk_prob": "1"}, "norm_topk_prob"},
		{m{"num_key_value_heads": "3"}, "num_key_value_heads"},
		{m{"sliding_window": "64"}, "sliding_window"},
		{m{"attention_bias": "true"}, "attention_bias"},
		{m{"rope_theta": ""}, "rope_theta"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestVariantsOLMoE checks settings the golden does not have.
func TestVariantsOLMoE(t *testing.T) {
	c, err := Parse(edit(t, readFile(t, goldens, "olmoe", "config.json"), m{"norm_topk_prob": "true", "num_key_value_heads": "null"}))
	if err != nil {
		t.Fatal(err)
	}
	if q, k := c.Layers[0].Mixer.(GQA).NormDims(); !c.MoE.Router.Normalize || q != 128 || k != 128 {
		t.Errorf("norms of %d and %d values, router %+v", q, k, c.MoE.Router)
	}
}
