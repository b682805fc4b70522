package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/tensor"
)

// TestParseQwen2 pins every field.
func TestParseQwen2(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "qwen2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "qwen2", Hidden: 128, Vocab: 512, MaxContext: 32768, NormEps: 1e-6, TieEmbed: true, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	gqa := GQA{Heads: 4, KVHeads: 2, HeadDim: 32, Bias: true, Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 32, Theta: 1e6, CosSinScale: 1}}
	want.Stack(3, Usual(gqaRoles), func(int) (Mixer, FFN) { return gqa, Dense{FF: 256} })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if n := c.KVBlockBytes(1, tensor.BF16); n != 3*2*2*2*32 {
		t.Errorf("%d bytes of KV cache for a token", n)
	}
}

// TestBytesPerTokenQwen2: all matrices, the tied embedding once as the head.
func TestBytesPerTokenQwen2(t *testing.T) {
	for _, tied := range []string{"true", "false"} {
		c, err := Parse(edit(t, readFile(t, goldens, "qwen2", "config.json"), m{"tie_word_embeddings": tied}))
		if err != nil {
			t.Fatal(err)
		}
		var want int64
		for _, s := range c.Expected() {
			if len(s.Shape) == 2 && (c.TieEmbed || s.Name != c.Names().Embed) {
				want += 2 * int64(s.Shape[0]*s.Shape[1])
			}
		}
		if got := c.BytesPerToken(); got != want {
			t.Errorf("tied %s: %d bytes a token, the matrices have %d", tied, got, want)
		}
	}
}

var brokenQwen2 = []brokenCase{
	{m{"hidden_size": ""}, "hidden_size"},
	{m{"hidden_size": "130"}, "num_attention_heads"},
	{m{"hidden_size": "12"}, "num_attention_heads"},
	{m{"hidden_size": "32768"}, "num_attention_heads"},
	{m{"intermediate_size": "null"}, "intermediate_size"},
	{m{"num_attention_heads": ""}, "num_attention_heads"},
	{m{"num_attention_heads": "0"}, "num_attention_heads"},
	{m{"num_key_value_heads": ""}, "num_key_value_heads"},
	{m{"num_key_value_heads": "3"}, "num_key_value_heads"},
	{m{"num_key_value_heads": "8"}, "num_key_value_heads"},
	{m{"num_key_value_heads": "-2"}, "num_key_value_heads"},
	{m{"head_dim": "33"}, "head_dim"},
	{m{"head_dim": "0"}, "head_dim"},
	{m{"head_dim": `"32"`}, "head_dim"},
	{m{"use_sliding_window": "true"}, "use_sliding_window"},
	{m{"use_sliding_window": "1"}, "use_sliding_window"},
	{m{"use_mrope": "true"}, "use_mrope"},
	{m{"layer_types": `["full_attention","sliding_attention","full_attention"]`}, "layer_types"},
	{m{"layer_types": `["full_attention"]`}, "layer_types"},
	{m{"layer_types": `"full_attention"`}, "layer_types"},
	{m{"layer_types": `[1,2,3]`}, "layer_types"},
	{m{"attention_bias": "true"}, "attention_bias"},
	{m{"hidden_act": `"gelu"`}, "hidden_act"},
	{m{"quantization_config": `{"quant_method":"awq"}`}, "quantization_config.quant_method"},
	{m{"rope_theta": ""}, "rope_theta"},
	{m{"rope_scaling": `{"type":"dynamic","factor":2}`}, "rope_scaling.type"},
	{m{"rope_scaling": `{"type":"yarn","factor":4,"original_max_position_embeddings":65536}`}, "max_position_embeddings"},
}

func TestBrokenQwen2(t *testing.T) {
	base := readFile(t, goldens, "qwen2", "config.json")
	for _, tt := range brokenQwen2 {
		t.Run(fmt.Sprint(tt.change), func(t *testing.T) { checkFields(t, edit(t, base, tt.change), tt.fields) })
	}
}

// TestVariantsQwen2 checks settings the golden does not have.
func TestVariantsQwen2(t *testing.T) {
	base := readFile(t, goldens, "qwen2", "config.json")
	for _, tt := range []struct {
		name   string
		change m
		ok     func(c *Config) bool
	}{
		{"multi-head", m{"num_key_value_heads": "null"}, func(c *Config) bool { return c.Layers[0].Mixer.(GQA).KVHeads == 4 && kvWidth(c) == 256 }},
		{"multi-query", m{"num_key_value_heads": "1"}, func(c *Config) bool { return kvWidth(c) == 64 }},
		{"head_dim", m{"head_dim": "48"}, func(c *Config) bool {
			return c.Layers[0].Mixer.(GQA).HeadDim == 48 && rotary(c).Dim == 48 && c.Layers[0].Mixer.(GQA).QDim() == 192 && c.Layers[0].Mixer.(GQA).Scale == float32(1/math.Sqrt(48))
		}},
		{"head_dim null", m{"head_dim": "null"}, func(c *Config) bool { return c.Layers[0].Mixer.(GQA).HeadDim == 32 }},
		{"linear", m{"rope_scaling": `{"type":"linear","factor":4}`}, func(c *Config) bool { return rotary(c).InvFreq[0] == 0.25 }},
		// As the release's notes on long texts have it: the factor is on cos and sin only.
		{"yarn", m{"rope_scaling": `{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`}, func(c *Config) bool {
			return near(rotary(c).CosSinScale, 0.1*math.Log(4)+1) && c.Layers[0].Mixer.(GQA).Scale == float32(1/math.Sqrt(32)) && rotary(c).InvFreq[0] == 1
		}},
		{"a window that is off", m{"sliding_window": "131072", "max_window_layers": "2", "use_sliding_window": ""}, func(c *Config) bool { return len(c.Layers) == 3 }},
		{"own head", m{"tie_word_embeddings": "false"}, func(c *Config) bool { return c.Names().Head == "lm_head.weight" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(edit(t, base, tt.change))
			if err != nil {
				t.Fatal(err)
			}
			if !tt.ok(c) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// kvWidth is the width of a cached row.
func kvWidth(c *Config) int { return c.Layers[0].Mixer.State()[0].Width }
