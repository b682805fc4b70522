package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseGLM4MoE pins every field.
func TestParseGLM4MoE(t *testing.T) {
	base := readFile(t, goldens, "glm4_moe", "config.json")
	c, err := Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "glm4_moe", Hidden: 128, Vocab: 512, MaxContext: 131072, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1, 3}, Pad: -1,
	}
	a := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, Bias: true, QKNorm: true, NormEps: 1e-5,
		Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 16, Theta: 1e6, CosSinScale: 1}}
	moe := MoE{Experts: 8, FF: 32, SharedFF: 32, Correction: true, Router: device.Router{Experts: 8, TopK: 3, Scoring: device.ScoreSigmoid,
		Groups: 1, TopGroups: 1, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5}}
	want.Stack(3, qwen3Roles, mixed(a, Dense{FF: 256}, moe, func(i int) bool { return i > 0 }))
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	// GLM-4.5-Air has neither norms nor, by its defaults, biases.
	c, err = Parse(edit(t, base, m{"use_qk_norm": "", "attention_bias": "", "partial_rotary_factor": ""}))
	if err != nil {
		t.Fatal(err)
	}
	if g := c.Layers[0].Mixer.(GQA); g.QKNorm || g.Bias || g.Rope.Dim != 16 {
		t.Errorf("by the defaults: %+v", g)
	}
}

// TestBrokenGLM4MoE names the field that cannot be used.
func TestBrokenGLM4MoE(t *testing.T) {
	base := readFile(t, goldens, "glm4_moe", "config.json")
	for _, x := range []brokenCase{
		{m{"n_routed_experts": "2"}, "num_experts_per_tok"},
		{m{"n_group": "3"}, "n_group"},
		{m{"first_k_dense_replace": "4"}, "first_k_dense_replace"},
		{m{"use_qk_norm": "1"}, "use_qk_norm"},
		{m{"attention_bias": `"q"`}, "attention_bias"},
		{m{"partial_rotary_factor": "0"}, "partial_rotary_factor"},
		{m{"partial_rotary_factor": "0.1"}, "partial_rotary_factor"},
		{m{"partial_rotary_factor": "1.5"}, "partial_rotary_factor"},
		{m{"rope_theta": "", "rope_parameters": `{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":0.25}`}, "partial_rotary_factor"},
		{m{"num_key_value_heads": "3"}, "num_key_value_heads"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
