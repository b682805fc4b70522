package model

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseQwen3Next pins every field.
func TestParseQwen3Next(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "qwen3_next", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "qwen3_next", Hidden: 128, Vocab: 512, MaxContext: 262144, NormEps: 1e-6, CentredNorms: true, DType: tensor.BF16,
		Foreign: []string{"mtp."}, BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	a := GQA{Heads: 4, KVHeads: 1, HeadDim: 64, QKNorm: true, NormEps: 1e-6, Gate: true, Scale: 1. / 8,
		Rope: &RopeConfig{Dim: 16, Theta: 1e7, CosSinScale: 1}}
	d := DeltaNet{device.DeltaNet{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Taps: 4, ByKeyHead: true}, 1e-6}
	moe := MoE{Experts: 16, FF: 32, SharedFF: 32, SharedGate: true,
		Router: device.Router{Experts: 16, TopK: 4, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	want.Stack(4, qwen3NextRoles, func(i int) (Mixer, FFN) {
		if i == 3 {
			return a, moe
		}
		return d, moe
	})
	for i := range 3 {
		want.Layers[i].Roles = qwen3DeltaRoles
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenQwen3Next names the field that cannot be used.
func TestBrokenQwen3Next(t *testing.T) {
	base := readFile(t, goldens, "qwen3_next", "config.json")
	for _, x := range []brokenCase{
		{m{"linear_num_key_heads": ""}, "linear_num_key_heads"},
		{m{"linear_num_value_heads": "3"}, "linear_num_value_heads"},
		{m{"linear_key_head_dim": "0"}, "linear_key_head_dim"},
		{m{"linear_value_head_dim": "65536"}, "linear_value_head_dim"},
		{m{"linear_conv_kernel_dim": "1"}, "linear_conv_kernel_dim"},
		{m{"linear_conv_kernel_dim": "17"}, "linear_conv_kernel_dim"},
		{m{"partial_rotary_factor": "0.3"}, "partial_rotary_factor"},
		{m{"partial_rotary_factor": "2"}, "partial_rotary_factor"},
		{m{"full_attention_interval": "0"}, "full_attention_interval"},
		{m{"layer_types": `["full_attention"]`}, "layer_types"},
		{m{"layer_types": `["full_attention", "sliding_attention", "full_attention", "full_attention"]`}, "layer_types"},
		{m{"decoder_sparse_step": "2"}, "decoder_sparse_step"},
		{m{"mlp_only_layers": "[1]"}, "decoder_sparse_step"},
		{m{"shared_expert_intermediate_size": ""}, "shared_expert_intermediate_size"},
		{m{"use_sliding_window": "true"}, "use_sliding_window"},
		{m{"num_experts_per_tok": "17"}, "num_experts_per_tok"},
		{m{"hidden_act": `"gelu"`}, "hidden_act"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestQwen3NextLayers: a list of kinds, or every how many layers attention is full; the draft head's
// tensors may be there.
func TestQwen3NextLayers(t *testing.T) {
	base := readFile(t, goldens, "qwen3_next", "config.json")
	for text, want := range map[string]string{
		"": "DDDA",
		`["linear_attention", "full_attention", "linear_attention", "linear_attention"]`: "DADD",
	} {
		c, err := Parse(edit(t, base, m{"layer_types": text}))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range c.Layers {
			kind, name := "D", c.Layers[i].Name("o")
			if _, ok := c.Layers[i].Mixer.(GQA); ok {
				kind = "A"
			}
			if got += kind; (kind == "A") != strings.Contains(name, "self_attn") {
				t.Errorf("%s: layer %d is %s, its output is %s", text, i, kind, name)
			}
		}
		if got != want {
			t.Errorf("%s: layers %s, want %s", text, got, want)
		}
		if !c.ignored("mtp.layers.0.mlp.gate.weight") || c.ignored("model.mtp.weight") {
			t.Error("not the draft head's tensors alone are ignored")
		}
	}
}

// TestDeltaNetColumns: the columns of a row are each of one kind, in both orders.
func TestDeltaNetColumns(t *testing.T) {
	for _, byHead := range []bool{false, true} {
		p := device.DeltaNet{KeyHeads: 3, ValueHeads: 6, KeyDim: 5, ValueDim: 7, Taps: 4, ByKeyHead: byHead}
		row, numbers := make([]int, p.Width()), make([]int, 2*p.ValueHeads)
		mark := func(in []int, c device.Columns, n int) {
			for h := range p.KeyHeads {
				for i := range n {
					in[c.At+h*c.Step+i]++
				}
			}
		}
		mark(row, p.Queries(), p.KeyDim)
		mark(row, p.Keys(), p.KeyDim)
		mark(row, p.Inputs(), 2*p.ValueDim)
		mark(row, p.Gates(), 2*p.ValueDim)
		mark(numbers, p.Strengths(), 2)
		mark(numbers, p.Decays(), 2)
		for i, n := range append(row, numbers...) {
			if n != 1 {
				t.Errorf("by key head %t: column %d belongs to %d kinds", byHead, i, n)
			}
		}
	}
}

// The sizes in config.json of Qwen/Qwen3-Next-80B-A3B-Instruct.
const qwen3Next80B = `{"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
	"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "vocab_size": 151936,
	"max_position_embeddings": 262144, "rms_norm_eps": 1e-06, "rope_theta": 10000000, "full_attention_interval": 4,
	"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
	"linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
	"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "norm_topk_prob": true, "mlp_only_layers": []}`

// TestQwen3NextSizes: the published model has 80 billion parameters (without its draft head), and a
// sequence keeps 2 MiB of states and 128 KiB of inputs in each of 36 layers.
func TestQwen3NextSizes(t *testing.T) {
	c, err := Parse([]byte(qwen3Next80B))
	if err != nil {
		t.Fatal(err)
	}
	if n := parameters(c) / 1e9; math.Abs(n-79.67) > 0.01 {
		t.Errorf("%.3f billion parameters", n)
	}
	if got, want := c.SequenceBytes(tensor.BF16), int64(36*(2<<20+128<<10)); got != want {
		t.Errorf("a sequence keeps %d bytes, want %d", got, want)
	}
	if got, want := c.KVBlockBytes(1, tensor.BF16), int64(12*2*2*256*2); got != want {
		t.Errorf("a token takes %d bytes, want %d", got, want)
	}
}
