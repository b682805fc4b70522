package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseMixtral pins every field.
func TestParseMixtral(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "mixtral", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "mixtral", Hidden: 128, Vocab: 512, MaxContext: 32768, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 32, Theta: 1e6, CosSinScale: 1}}
	moe := MoE{Experts: 4, FF: 128, Router: device.Router{Experts: 4, TopK: 2, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	want.Stack(3, mixtralRoles, func(int) (Mixer, FFN) { return a, moe })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenMixtral names the field that cannot be used.
func TestBrokenMixtral(t *testing.T) {
	base := readFile(t, goldens, "mixtral", "config.json")
	for _, x := range []brokenCase{
		{m{"num_local_experts": ""}, "num_local_experts"},
		{m{"num_local_experts": "1"}, "num_experts_per_tok"},
		{m{"num_local_experts": "4096", "num_hidden_layers": "64"}, "num_local_experts"},
		{m{"num_experts_per_tok": "0"}, "num_experts_per_tok"},
		{m{"intermediate_size": ""}, "intermediate_size"},
		{m{"num_key_value_heads": "3"}, "num_key_value_heads"},
		{m{"head_dim": "31"}, "head_dim"},
		{m{"rope_theta": ""}, "rope_theta"},
		{m{"sliding_window": "0"}, "sliding_window"},
		{m{"sliding_window": `"4096"`}, "sliding_window"},
		{m{"hidden_act": `"gelu"`}, "hidden_act"},
		{m{"attention_bias": "true"}, "attention_bias"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestMixtralWindow: a window as long as the context limits nothing.
func TestMixtralWindow(t *testing.T) {
	for text, want := range map[string]int{"null": 0, "32768": 0, "32767": 32767, "4096": 4096} {
		c, err := Parse(edit(t, readFile(t, goldens, "mixtral", "config.json"), m{"sliding_window": text}))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Layers[2].Mixer.(GQA).Window; got != want {
			t.Errorf("sliding_window %s: a window of %d, want %d", text, got, want)
		}
	}
}
