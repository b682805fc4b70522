package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/tensor"
)

// TestParseLlama pins every field.
func TestParseLlama(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "llama3", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "llama", Hidden: 96, Vocab: 320, MaxContext: 131072, NormEps: 1e-5, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 3, KVHeads: 1, HeadDim: 32, Scale: float32(1 / math.Sqrt(32)), Rope: &RopeConfig{Dim: 32, Theta: 5e5, CosSinScale: 1}}
	want.Stack(3, Usual(gqaRoles), func(int) (Mixer, FFN) { return a, Dense{FF: 160} })
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestLlamaFrequencies: a frequency of each kind, computed by hand. The original context of 64
// makes 64 f / 2 pi turns: more than 4 are kept, fewer than 1 divided by 8.
func TestLlamaFrequencies(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "llama3", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	f := func(i int) float64 { return math.Pow(5e5, -float64(i)/16) }
	between := (64*f(2)/(2*math.Pi) - 1) / 3 // it makes 1.97
	for i, want := range map[int]float64{0: 1, 1: f(1), 2: f(2)*between + f(2)/8*(1-between), 3: f(3) / 8, 8: f(8) / 8, 15: f(15) / 8} {
		if got := rotary(c).InvFreq[i]; math.Abs(got-want) > 1e-12*want {
			t.Errorf("frequency %d is %v, want %v", i, got, want)
		}
	}
}

// TestBrokenLlama names the field that cannot be used.
func TestBrokenLlama(t *testing.T) {
	base := readFile(t, goldens, "llama3", "config.json")
	for _, x := range []brokenCase{
		{m{"intermediate_size": ""}, "intermediate_size"},
		{m{"num_attention_heads": "0"}, "num_attention_heads"},
		{m{"num_key_value_heads": "2"}, "num_key_value_heads"},
		{m{"head_dim": "31"}, "head_dim"},
		{m{"attention_bias": "true"}, "attention_bias"},
		{m{"mlp_bias": "true"}, "mlp_bias"},
		{m{"hidden_act": `"gelu"`}, "hidden_act"},
		{m{"rope_theta": ""}, "rope_theta"},
		{m{"max_position_embeddings": "63"}, "max_position_embeddings"},
		{m{"rope_scaling.factor": ""}, "rope_scaling.factor"},
		{m{"rope_scaling.factor": "0.5"}, "rope_scaling.factor"},
		{m{"rope_scaling.low_freq_factor": "null"}, "rope_scaling.low_freq_factor"},
		{m{"rope_scaling.high_freq_factor": "1"}, "rope_scaling.high_freq_factor"},
		{m{"rope_scaling.original_max_position_embeddings": ""}, "rope_scaling.original_max_position_embeddings"},
		{m{"rope_scaling.beta_fast": "32"}, "rope_scaling.beta_fast"},
		{m{"rope_scaling": `{"rope_type":"linear","factor":2,"low_freq_factor":1}`}, "rope_scaling.low_freq_factor"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
