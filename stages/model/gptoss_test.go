package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseGPTOSS pins every field.
func TestParseGPTOSS(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "gpt_oss", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "gpt_oss", Hidden: 128, Vocab: 512, MaxContext: 131072, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1, Fused: gptOSSFused,
	}
	full := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, Bias: true, OutBias: true, Sinks: true, Scale: float32(1 / math.Sqrt(32)),
		Rope: &RopeConfig{Dim: 32, Theta: 150000, CosSinScale: 0.1*math.Log(32) + 1}}
	windowed := full
	windowed.Window = 8
	moe := MoE{Experts: 8, FF: 32, RouterBias: true, Biases: true, Act: device.Activation{Alpha: 1.702, Limit: 7, Shift: 1},
		Router: device.Router{Experts: 8, TopK: 4, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	want.Stack(3, gptOSSRoles, func(i int) (Mixer, FFN) {
		if i == 1 {
			return full, moe
		}
		return windowed, moe
	})
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestGPTOSSLayers: without layer_types every second layer sees everything, from the second on.
func TestGPTOSSLayers(t *testing.T) {
	base := readFile(t, goldens, "gpt_oss", "config.json")
	for text, want := range map[string][]int{
		"":     {8, 0, 8},
		"null": {8, 0, 8},
		`["full_attention", "full_attention", "sliding_attention"]`: {0, 0, 8},
	} {
		c, err := Parse(edit(t, base, m{"layer_types": text}))
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i := range c.Layers {
			got = append(got, c.Layers[i].Mixer.(GQA).Window)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("layer_types %s: windows %v, want %v", text, got, want)
		}
	}
}

// TestBrokenGPTOSS names the field that cannot be used.
func TestBrokenGPTOSS(t *testing.T) {
	base := readFile(t, goldens, "gpt_oss", "config.json")
	for _, x := range []brokenCase{
		{m{"num_local_experts": ""}, "num_local_experts"},
		{m{"num_experts_per_tok": ""}, "num_experts_per_tok"},
		{m{"num_experts_per_tok": "9"}, "num_experts_per_tok"},
		{m{"intermediate_size": "0"}, "intermediate_size"},
		{m{"sliding_window": "0"}, "sliding_window"},
		{m{"swiglu_limit": "0"}, "swiglu_limit"},
		{m{"swiglu_limit": `"7"`}, "swiglu_limit"},
		{m{"layer_types": `["full_attention"]`}, "layer_types"},
		{m{"layer_types": `["full_attention", "chunked_attention", "full_attention"]`}, "layer_types"},
		{m{"hidden_act": `"gelu"`}, "hidden_act"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
