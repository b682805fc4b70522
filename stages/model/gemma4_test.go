package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// gemma4Want has the fields that both goldens have in common.
func gemma4Want() *Config {
	return &Config{Family: "gemma4", Hidden: 96, Vocab: 320, MaxContext: 262144, NormEps: 1e-6, DType: tensor.BF16, TieEmbed: true,
		EmbedScale: float32(math.Sqrt(96)), Softcap: 8, BOS: 2, EOS: []int32{1}, Pad: 0, Placeholders: []int32{316, 317, 313},
		Foreign: []string{"model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."}}
}

// gemma4Parsed reads a golden, without its frequencies: TestGoldens and TestGemma4Rope hold them.
func gemma4Parsed(t *testing.T, arch string) *Config {
	t.Helper()
	c, err := Parse(readFile(t, goldens, arch, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Ropes() {
		r.InvFreq = nil
	}
	return c
}

// TestParseGemma4Experts pins every field of a model with experts.
func TestParseGemma4Experts(t *testing.T) {
	c, want := gemma4Parsed(t, "gemma4_moe"), gemma4Want()
	windowed := GQA{Heads: 6, KVHeads: 3, HeadDim: 32, QKNorm: true, ValueNorm: true, NormEps: 1e-6, Scale: 1, Window: 8,
		Rope: &RopeConfig{Dim: 32, Theta: 10000, CosSinScale: 1}}
	full := GQA{Heads: 6, KVHeads: 2, HeadDim: 64, QKNorm: true, ValueNorm: true, KeyValues: true, NormEps: 1e-6, Scale: 1,
		Rope: &RopeConfig{Dim: 64, Theta: 1000000, CosSinScale: 1}}
	moe := MoE{Experts: 7, FF: 32, SharedFF: 160, Act: device.GELUTanh, OwnNorms: true, Factors: true,
		Router: device.Router{Experts: 7, TopK: 3, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	want.Fused = []Fused{
		{Name: "experts.gate_up_proj", Parts: []FusedPart{{Role: "expert.gate", Step: 1}, {Role: "expert.up", First: 32, Step: 1}}},
		{Name: "experts.down_proj", Parts: []FusedPart{{Role: "expert.down", Step: 1}}},
	}
	want.Stack(3, gemma4Roles, func(i int) (Mixer, FFN) {
		if i == 2 {
			return full, moe
		}
		return windowed, moe
	})
	for i := range want.Layers {
		want.Layers[i].NormsAfter, want.Layers[i].Scalar = true, true
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestParseGemma4Shared pins every field of a model with rows for single layers, whose last layers
// use the keys and values of others.
func TestParseGemma4Shared(t *testing.T) {
	c, want := gemma4Parsed(t, "gemma4_e"), gemma4Want()
	want.PerLayer = 32
	windowed := GQA{Heads: 3, KVHeads: 1, HeadDim: 32, QKNorm: true, ValueNorm: true, NormEps: 1e-6, Scale: 1, Window: 8,
		Rope: &RopeConfig{Dim: 32, Theta: 10000, CosSinScale: 1}}
	full := windowed
	full.HeadDim, full.Window, full.Rope = 64, 0, &RopeConfig{Dim: 64, Theta: 1000000, CosSinScale: 1}
	want.Stack(6, gemma4Roles, func(i int) (Mixer, FFN) {
		a, ffn := windowed, Dense{FF: 96, Act: device.GELUTanh}
		if i%3 == 2 {
			a = full
		}
		if i >= 3 {
			a.Shared, ffn.FF = true, 192
		}
		return a, ffn
	})
	for i, kv := range []int{0, 1, 2, 1, 1, 2} {
		l := &want.Layers[i]
		l.KV, l.NormsAfter, l.PerLayer, l.Scalar = kv, true, 32, true
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if a, b := c.KVBlockBytes(1, tensor.BF16), int64(2*2*(32+32+64)); a != b {
		t.Errorf("a token takes %d bytes of the KV cache, want %d: shared layers keep nothing", a, b)
	}
}

// TestGemma4Rope: a proportional rotation turns a quarter of the pairs, by frequencies over the whole head.
func TestGemma4Rope(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "gemma4_moe", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for layer, vector := range map[int]string{0: "rope.inv_freq_sliding", 2: "rope.inv_freq"} {
		got, want := c.Layers[layer].Mixer.Rotary().InvFreq, goldenF32(t, "gemma4_moe", vector)
		if len(got) != len(want) {
			t.Fatalf("%d frequencies, want %d", len(got), len(want))
		}
		for i, w := range want {
			if math.Abs(got[i]-float64(w)) > 2e-7*float64(w) {
				t.Errorf("%s[%d] is %v, want %v", vector, i, got[i], w)
			}
		}
	}
}

// TestGemma4Published: the release has the parameters that its model card counts, 25.2 billion.
func TestGemma4Published(t *testing.T) {
	c, err := Parse(readFile(t, "..", "synth", "shapes", "gemma-4-26b-a4b.json"))
	if err != nil {
		t.Fatal(err)
	}
	if n := parameters(c) / 1e9; math.Abs(n-25.2) > 0.05 {
		t.Errorf("%.3f billion parameters", n)
	}
	if !reflect.DeepEqual(c.EOS, []int32{1, 106}) {
		t.Errorf("EOS %v", c.EOS)
	}
}

// TestBrokenGemma4 names the field that cannot be used.
func TestBrokenGemma4(t *testing.T) {
	for arch, list := range map[string][]brokenCase{
		"gemma4_moe": {
			{m{"text_config": ""}, "text_config"},
			{m{"text_config.model_type": `"gemma3_text"`}, "text_config.model_type"},
			{m{"text_config.layer_types": ""}, "text_config.layer_types"},
			{m{"text_config.layer_types": `["full_attention"]`}, "text_config.layer_types"},
			{m{"text_config.hidden_activation": `"gelu"`}, "text_config.hidden_activation"},
			{m{"text_config.use_bidirectional_attention": `"all"`}, "text_config.use_bidirectional_attention"},
			{m{"text_config.attention_bias": "true"}, "text_config.attention_bias"},
			{m{"text_config.rope_parameters": ""}, "text_config.rope_parameters.sliding_attention text_config.rope_parameters.full_attention"},
			{m{"text_config.num_experts": ""}, "text_config.num_experts"},
			{m{"text_config.top_k_experts": "8"}, "text_config.top_k_experts"},
			{m{"text_config.moe_intermediate_size": "null"}, "text_config.moe_intermediate_size"},
			{m{"text_config.final_logit_softcapping": "-1"}, "text_config.final_logit_softcapping"},
			{m{"text_config.num_global_key_value_heads": "4"}, "text_config.layer_types"},
		},
		"gemma4_e": {
			{m{"text_config.num_kv_shared_layers": "6"}, "text_config.num_kv_shared_layers"},
			{m{"text_config.num_kv_shared_layers": "4"}, "text_config.num_kv_shared_layers"},
			{m{"text_config.vocab_size_per_layer_input": "319"}, "text_config.vocab_size_per_layer_input"},
			{m{"text_config.intermediate_size": ""}, "text_config.intermediate_size"},
		},
	} {
		base := readFile(t, goldens, arch, "config.json")
		for _, x := range list {
			t.Run(fmt.Sprint(arch, x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
		}
	}
}
