package model

import (
	"fmt"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseQwen4 pins every field.
func TestParseQwen4(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "qwen4_exp", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Ropes() {
		r.InvFreq = nil // held to the golden by TestGoldens
	}
	moe := MoE{Experts: 6, FF: 32, SharedFF: 32, SharedGate: true,
		Router: device.Router{Experts: 6, TopK: 2, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	want := &Config{
		Family: "qwen4_exp", Hidden: 96, Vocab: 320, MaxContext: 262144, NormEps: 1e-6, CentredNorms: true, DType: tensor.BF16,
		BOS: 2, EOS: []int32{2}, Pad: -1, Streams: Streams{Count: 3, Rank: 32}, Foreign: []string{"mtp."},
	}
	a := GQA{Heads: 6, KVHeads: 2, HeadDim: 32, QKNorm: true, NormEps: 1e-6, Gate: true, Scale: float32(softmax(32)),
		Rope: &RopeConfig{Dim: 16, Theta: 1e7, CosSinScale: 1}, Index: BlockIndex{Heads: 5, Dim: 32, Block: 4, Chosen: 2, NormEps: 1e-6}}
	d := DeltaNet{device.DeltaNet{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Taps: 4, SigmoidGate: true}, 1e-6}
	want.hybrid(3, func(i int) bool { return i == 2 }, a, qwen4Roles, d, qwen4DeltaRoles, moe)
	want.Fused = []Fused{
		{Name: "mlp.experts.gate_up_proj", Parts: []FusedPart{{"expert.gate", 0, 1}, {"expert.up", 32, 1}}},
		{Name: "mlp.experts.down_proj", Parts: []FusedPart{{"expert.down", 0, 1}}},
	}
	want.Layers[1].NGrams = &NGrams{Shards: 4, Rows: 3408, Taps: 4, Streams: want.Streams, NormEps: 1e-6, Sizes: &device.NGrams{
		Order: 3, PerOrder: 4, Dim: 8, EOS: 2, // as facts.json has them:
		Multipliers: []uint64{25912437101140037, 21043097849633001, 26491075874708125},
		Sizes:       []uint64{401, 409, 419, 421, 431, 433, 439, 443}, Offsets: []uint64{0, 401, 810, 1229, 1650, 2081, 2514, 2953},
	}}
	for _, name := range ngramFacts {
		want.Foreign = append(want.Foreign, "model.layers.1.ple.ple_embedding."+name)
	}
	want.rename(func(name string) string {
		if name == "mtp." || name == "lm_head.weight" {
			return name
		}
		return "model.language_model." + name[len("model."):]
	})
	want.Foreign = append(want.Foreign, "model.visual.")
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenQwen4 names the field that cannot be used.
func TestBrokenQwen4(t *testing.T) {
	base := readFile(t, goldens, "qwen4_exp", "config.json")
	for _, x := range []brokenCase{
		{m{"text_config": ""}, "text_config"},
		{m{"text_config.model_type": `"qwen3_5_text"`}, "text_config.model_type"},
		{m{"text_config.attn_output_gate": "false"}, "text_config.attn_output_gate"},
		{m{"text_config.output_gate_type": `"tanh"`}, "text_config.output_gate_type"},
		{m{"text_config.hc_count": ""}, "text_config.hc_count"},
		{m{"text_config.hc_count": "65"}, "text_config.hc_count"},
		{m{"text_config.hc_lowrank": "0"}, "text_config.hc_lowrank"},
		{m{"text_config.indexer_budget": "7"}, "text_config.indexer_budget"},
		{m{"text_config.indexer_kv_heads": "2"}, "text_config.indexer_kv_heads"},
		{m{"text_config.indexer_head_dim": "8"}, "text_config.indexer_head_dim"},
		{m{"text_config.indexer_compress_ratio": ""}, "text_config.indexer_compress_ratio"},
		{m{"text_config.layer_types": `["linear_attention","linear_attention","sliding_attention"]`}, "text_config.layer_types"},
		{m{"text_config.ple_layer_ids": "[3]"}, "text_config.ple_layer_ids"},
		{m{"text_config.ple_layer_ids": "[0]"}, "text_config.ple_layer_ids"},
		{m{"text_config.ple_embed_dim": "63"}, "text_config.ple_embed_dim"},
		{m{"text_config.ple_conv_kernel_size": "17"}, "text_config.ple_conv_kernel_size"},
		{m{"text_config.split_ngram_parts": "7"}, "text_config.split_ngram_parts"},
		{m{"text_config.ngram_size": "1"}, "text_config.ngram_size"},
		{m{"text_config.heads_per_ngram": "200"}, "text_config.heads_per_ngram"},
		{m{"text_config.ngram_vocab_size_base": "300000000"}, "text_config.ngram_vocab_size_base"}, // times 8: over 2^31
		{m{"text_config.seed": ""}, "text_config.seed"},
		{m{"text_config.eos_token_id": ""}, "text_config.eos_token_id"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

func TestPrimes(t *testing.T) {
	sieve := make([]bool, 5000)
	for n := 2; n < len(sieve); n++ {
		if isPrime(uint64(n)) == sieve[n] {
			t.Errorf("%d", n)
		}
		for m := 2 * n; m < len(sieve) && !sieve[n]; m += n {
			sieve[m] = true
		}
	}
	for n, want := range map[uint64]bool{0: false, 1: false, 20000003: true, 1<<31 - 1: true, 3215031751 - 1: false, 25326001: false, 1073741789: true, 1073741827: true} {
		if isPrime(n) != want {
			t.Errorf("%d: %t", n, !want)
		}
	}
}
