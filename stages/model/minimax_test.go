package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseMiniMaxM2 pins every field.
func TestParseMiniMaxM2(t *testing.T) {
	base := readFile(t, goldens, "minimax_m2", "config.json")
	c, err := Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "minimax_m2", Hidden: 128, Vocab: 512, MaxContext: 196608, NormEps: 1e-6, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, QKNorm: true, WholeNorm: true, NormEps: 1e-6,
		Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 16, Theta: 5e6, CosSinScale: 1}}
	moe := MoE{Experts: 8, FF: 32, Correction: true, Router: device.Router{Experts: 8, TopK: 3, Scoring: device.ScoreSigmoid, Normalize: true, Scale: 1}}
	want.Stack(3, miniMaxRoles, func(int) (Mixer, FFN) { return a, moe })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	// The release has rotary_dim alone.
	if c, err = Parse(edit(t, base, m{"partial_rotary_factor": ""})); err != nil || c.Layers[0].Mixer.(GQA).Rope.Dim != 16 {
		t.Errorf("rotary_dim alone: %v", err)
	}
}

// TestBrokenMiniMaxM2 names the field that cannot be used.
func TestBrokenMiniMaxM2(t *testing.T) {
	base := readFile(t, goldens, "minimax_m2", "config.json")
	for _, x := range []brokenCase{
		{m{"num_local_experts": ""}, "num_local_experts"},
		{m{"num_local_experts": "2"}, "num_experts_per_tok"},
		{m{"rotary_dim": "15"}, "rotary_dim"},
		{m{"rotary_dim": "34"}, "rotary_dim"},
		{m{"rotary_dim": "8"}, "partial_rotary_factor"},
		{m{"qk_norm_type": `"per_head"`}, "qk_norm_type"},
		{m{"scoring_func": `"softmax"`}, "scoring_func"},
		{m{"attn_type_list": "[1, 0, 1]"}, "attn_type_list"},
		{m{"attn_type_list": "[0, 0, 0]"}, "attn_type_list"},
		{m{"attn_type_list": "[1, 1, 1, 1]"}, "attn_type_list"},
		{m{"shared_intermediate_size": "64"}, "shared_intermediate_size"},
		{m{"num_expert_group": "4"}, "num_expert_group"},
		{m{"attention_bias": "true"}, "attention_bias"},
		{m{"intermediate_size": ""}, "intermediate_size"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
