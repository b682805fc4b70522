package model

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseQwen3MoE pins every field of a published config.
func TestParseQwen3MoE(t *testing.T) {
	c, err := Parse(shape(t, "qwen3-30b-a3b"))
	if err != nil {
		t.Fatal(err)
	}
	if len(rotary(c).InvFreq) != 64 || rotary(c).InvFreq[1] != math.Pow(1e6, -2./128) {
		t.Errorf("frequencies %v", rotary(c).InvFreq)
	}
	rotary(c).InvFreq = nil
	want := &Config{
		Family: "qwen3_moe", Hidden: 2048, Vocab: 151936, MaxContext: c.MaxContext, NormEps: 1e-6, DType: tensor.BF16,
		BOS: c.BOS, EOS: c.EOS, Pad: c.Pad,
	}
	a := GQA{Heads: 32, KVHeads: 4, HeadDim: 128, QKNorm: true, NormEps: 1e-6, Scale: float32(1 / math.Sqrt(128)),
		Rope: &RopeConfig{Dim: 128, Theta: 1e6, CosSinScale: 1}}
	moe := MoE{Experts: 128, FF: 768, Router: device.Router{Experts: 128, TopK: 8, Normalize: true, Scale: 1}}
	want.Stack(48, qwen3Roles, func(int) (Mixer, FFN) { return a, moe })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestQwen3Layers: which layers have experts, by a step and by a list.
func TestQwen3Layers(t *testing.T) {
	base := shape(t, "qwen3-30b-a3b")
	for _, x := range []struct {
		change m
		want   []int
	}{
		{m{"num_hidden_layers": "4"}, []int{0, 1, 2, 3}},
		{m{"num_hidden_layers": "4", "decoder_sparse_step": "2"}, []int{1, 3}},
		{m{"num_hidden_layers": "4", "mlp_only_layers": "[0, 2]"}, []int{1, 3}},
		{m{"num_hidden_layers": "4", "num_experts": "", "num_local_experts": "128"}, []int{0, 1, 2, 3}},
		{m{"num_hidden_layers": "4", "model_type": `"qwen3"`}, nil},
	} {
		c, err := Parse(edit(t, base, x.change))
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i := range c.Layers {
			if c.MoELayer(i) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%v: experts in layers %v, want %v", x.change, got, x.want)
		}
	}
}

// TestBrokenQwen3 names the field that cannot be used.
func TestBrokenQwen3(t *testing.T) {
	base := shape(t, "qwen3-30b-a3b")
	for _, x := range []brokenCase{
		{m{"num_experts": ""}, "num_experts"},
		{m{"num_experts": "4"}, "num_experts_per_tok"},
		{m{"num_experts": "4096"}, "num_experts"},
		{m{"moe_intermediate_size": "0"}, "moe_intermediate_size"},
		{m{"mlp_only_layers": "[-1]"}, "mlp_only_layers"},
		{m{"mlp_only_layers": `"all"`}, "mlp_only_layers"},
		{m{"decoder_sparse_step": "0"}, "decoder_sparse_step"},
		{m{"head_dim": "127"}, "head_dim"},
		{m{"use_sliding_window": "true"}, "use_sliding_window"},
		{m{"attention_bias": "true"}, "attention_bias"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
