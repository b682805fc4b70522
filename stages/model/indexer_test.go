package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseSparseLatent pins every field of DeepSeek-V3.2 and of GLM-5.
func TestParseSparseLatent(t *testing.T) {
	mscale := 0.1*math.Log(40) + 1
	for name, x := range map[string]struct {
		layers int
		want   Config
		scale  float64
		theta  float64
		router device.Router
	}{
		"deepseek_v32": {3, Config{MaxContext: 163840, NormEps: 1e-6, EOS: []int32{1}}, mscale * mscale / math.Sqrt(48), 1e4,
			device.Router{Experts: 9, TopK: 4, Groups: 3, TopGroups: 2}},
		"glm_moe_dsa": {4, Config{MaxContext: 202752, NormEps: 1e-5, EOS: []int32{1, 3}}, 1 / math.Sqrt(48), 1e6,
			device.Router{Experts: 7, TopK: 3, Groups: 1, TopGroups: 1}},
	} {
		c, err := Parse(readFile(t, goldens, name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		rotary(c).InvFreq = nil // held to the golden by TestGoldens
		want, r := &x.want, x.router
		want.Family, want.Hidden, want.Vocab, want.DType, want.Pad = name, 96, 320, tensor.BF16, -1
		r.Scoring, r.GroupScore, r.Normalize, r.Scale = device.ScoreSigmoid, device.GroupTop2Sum, true, 2.5
		a := MLA{Heads: 3, QRank: 64, KVRank: 64, Nope: 32, RopeDim: 16, VDim: 64, LatentEps: 1e-6, Scale: float32(x.scale),
			Rope:  &RopeConfig{Dim: 16, Theta: x.theta, Interleaved: true, CosSinScale: 1},
			Index: Indexer{Heads: 6, Dim: 32, TopK: 7, Interleaved: name == "glm_moe_dsa", NormEps: 1e-6}}
		moe := MoE{Experts: r.Experts, FF: 32, SharedFF: 32, Correction: true, Router: r}
		mix := mixed(a, Dense{FF: 160}, moe, func(i int) bool { return i > 0 })
		want.Stack(x.layers, Usual(mlaRoles, indexerRoles), func(i int) (Mixer, FFN) {
			m, ffn := mix(i)
			if name == "glm_moe_dsa" && i == 2 {
				own := m.(MLA)
				own.Index = Indexer{TopK: 7, Shared: true}
				m = own
			}
			return m, ffn
		})
		if !reflect.DeepEqual(c, want) {
			t.Errorf("got  %+v\nwant %+v", c, want)
		}
		if k, shared := c.Selection(); k != 7 || shared != (name == "glm_moe_dsa") {
			t.Errorf("%s: %d positions, shared %t", name, k, shared)
		}
	}
}

// TestBrokenSparseLatent names the field that cannot be used.
func TestBrokenSparseLatent(t *testing.T) {
	base := readFile(t, goldens, "glm_moe_dsa", "config.json")
	for _, x := range []brokenCase{
		{m{"index_topk": ""}, "index_topk"},
		{m{"index_topk": "0"}, "index_topk"},
		{m{"index_n_heads": "null"}, "index_n_heads"},
		{m{"index_head_dim": "8"}, "index_head_dim"},
		{m{"indexer_rope_interleave": "1"}, "indexer_rope_interleave"},
		{m{"q_lora_rank": "null"}, "q_lora_rank"},
		{m{"indexer_types": `["full","full","shared"]`}, "indexer_types"},
		{m{"indexer_types": `["full","full","half","full"]`}, "indexer_types"},
		{m{"indexer_types": `["shared","full","full","full"]`}, "indexer_types"},
		{m{"indexer_types": "", "index_topk_pattern": `"FFS"`}, "index_topk_pattern"},
		{m{"indexer_types": "", "index_topk_pattern": `"FFSX"`}, "index_topk_pattern"},
		{m{"index_topk_freq": "0"}, "index_topk_freq"},
		{m{"index_skip_topk_offset": "-1"}, "index_skip_topk_offset"},
		{m{"layer_types": `["indexed_attention","indexed_attention","full_attention","indexed_attention"]`}, "layer_types"},
		{m{"layer_types": `["indexed_attention"]`}, "layer_types"},
		{m{"mlp_layer_types": `["sparse","sparse","sparse","sparse"]`}, "mlp_layer_types"},
		{m{"scoring_func": `"softmax"`}, "scoring_func"},
		{m{"topk_method": `"greedy"`}, "topk_method"},
		{m{"attention_bias": "true"}, "attention_bias"},
		{m{"routed_scaling_factor": ""}, "routed_scaling_factor"},
		{m{"num_nextn_predict_layers": "-1"}, "num_nextn_predict_layers"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestSharedIndexers: the list names the layers, else the pattern, else the frequency.
func TestSharedIndexers(t *testing.T) {
	base := readFile(t, goldens, "glm_moe_dsa", "config.json")
	for _, x := range []struct {
		change m
		want   string
	}{
		{m{}, "FFSF"},
		{m{"index_topk_freq": "4"}, "FFSF"},
		{m{"indexer_types": "", "index_topk_pattern": `"FSSF"`}, "FSSF"},
		{m{"indexer_types": ""}, "FFFF"},
		{m{"indexer_types": "", "index_topk_freq": "4"}, "FFSS"},
		{m{"indexer_types": "", "index_topk_freq": "2", "index_skip_topk_offset": "1"}, "FSFS"},
	} {
		c, err := Parse(edit(t, base, x.change))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range c.Layers {
			got += map[bool]string{true: "S", false: "F"}[c.TakesSelection(i)]
		}
		if got != x.want {
			t.Errorf("%v: %s, want %s", x.change, got, x.want)
		}
	}
}
