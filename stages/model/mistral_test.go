package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/tensor"
)

// TestParseMistral pins every field.
func TestParseMistral(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "mistral", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "mistral", Hidden: 96, Vocab: 320, MaxContext: 32768, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 6, KVHeads: 2, HeadDim: 32, Window: 8, Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 32, Theta: 1e6, CosSinScale: 1}}
	want.Stack(3, Usual(gqaRoles), func(int) (Mixer, FFN) { return a, Dense{FF: 160} })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenMistral names the field that cannot be used.
func TestBrokenMistral(t *testing.T) {
	base := readFile(t, goldens, "mistral", "config.json")
	for _, x := range []brokenCase{
		{m{"sliding_window": "0"}, "sliding_window"},
		{m{"sliding_window": `"8"`}, "sliding_window"},
		{m{"sliding_window": "8.5"}, "sliding_window"},
		{m{"intermediate_size": ""}, "intermediate_size"},
		{m{"num_key_value_heads": "4"}, "num_key_value_heads"},
		{m{"head_dim": "0"}, "head_dim"},
		{m{"layer_types": `["full_attention","sliding_attention","full_attention"]`}, "layer_types"},
		{m{"rope_theta": "0"}, "rope_theta"},
		{m{"hidden_act": `"gelu"`}, "hidden_act"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
