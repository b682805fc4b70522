package model

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseDeepSeekV3 pins every field.
func TestParseDeepSeekV3(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "deepseek_v3", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "deepseek_v3", Hidden: 128, Vocab: 512, MaxContext: 163840, NormEps: 1e-6, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	mscale := 0.1*math.Log(40) + 1
	a := MLA{Heads: 4, QRank: 64, KVRank: 128, Nope: 32, RopeDim: 32, VDim: 32, LatentEps: 1e-6,
		Scale: float32(mscale * mscale / 8), Rope: &RopeConfig{Dim: 32, Theta: 1e4, Interleaved: true, CosSinScale: 1}}
	moe := MoE{Experts: 12, FF: 64, SharedFF: 64, Correction: true, Router: device.Router{Experts: 12, TopK: 4, Scoring: device.ScoreSigmoid,
		Groups: 4, TopGroups: 2, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5}}
	want.Stack(3, Usual(mlaRoles), mixed(a, Dense{FF: 192}, moe, func(i int) bool { return i > 0 }))
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestBrokenDeepSeekV3 names the field that cannot be used.
func TestBrokenDeepSeekV3(t *testing.T) {
	base := readFile(t, goldens, "deepseek_v3", "config.json")
	for _, x := range []brokenCase{
		{m{"n_routed_experts": ""}, "n_routed_experts"},
		{m{"n_group": "5"}, "n_group"},
		{m{"topk_group": "5"}, "topk_group"},
		{m{"topk_group": "1"}, "num_experts_per_tok"},
		{m{"num_experts_per_tok": "13"}, "num_experts_per_tok"},
		{m{"scoring_func": `"softmax"`}, "scoring_func"},
		{m{"topk_method": `"greedy"`}, "topk_method"},
		{m{"norm_topk_prob": "1"}, "norm_topk_prob"},
		{m{"routed_scaling_factor": "0"}, "routed_scaling_factor"},
		{m{"routed_scaling_factor": ""}, "routed_scaling_factor"},
		{m{"first_k_dense_replace": ""}, "first_k_dense_replace"},
		{m{"n_shared_experts": "null"}, "n_shared_experts"},
		{m{"n_group": ""}, "topk_group n_group"},
		{m{"attention_bias": "true"}, "attention_bias"},
		{m{"num_nextn_predict_layers": "-1"}, "num_nextn_predict_layers"},
		{m{"rope_interleave": `"yes"`}, "rope_interleave"},
		{m{"moe_intermediate_size": ""}, "moe_intermediate_size"},
		{m{"quantization_config": `{"quant_method":"no_such_method"}`}, "quantization_config.quant_method"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestNextLayers: the layers that predict tokens further ahead may be in the files, others may not.
func TestNextLayers(t *testing.T) {
	for arch, field := range map[string]m{
		"deepseek_v3": {"num_nextn_predict_layers": "1"},
		"glm4_moe":    {"num_nextn_predict_layers": "1"},
		"minimax_m2":  {"use_mtp": "true", "num_mtp_modules": "1"},
	} {
		shapes := fileShapes(t, arch)
		shapes["model.layers.3.eh_proj.weight"], shapes["model.layers.3.mlp.experts.0.up_proj.weight"] = []int{128, 256}, []int{64, 128}
		for change, ok := range map[bool]bool{false: false, true: true} {
			config := readFile(t, goldens, arch, "config.json")
			if change {
				config = edit(t, config, field)
			}
			c, err := Parse(config)
			if err != nil {
				t.Fatal(err)
			}
			check := func() error {
				return c.CheckTensors(sortedNames(shapes), func(n string) []int { return shapes[n] })
			}
			if err := check(); ok && err != nil || !ok && !errors.Is(err, ErrTensorStray) {
				t.Errorf("%s, %v: %v", arch, change, err)
			}
			if !ok {
				continue
			}
			const far = "model.layers.30.eh_proj.weight" // begins as the third, but for the dot
			shapes[far] = []int{128, 256}
			if err := check(); !errors.Is(err, ErrTensorStray) || !strings.Contains(err.Error(), far) {
				t.Errorf("%s: %v", arch, err)
			}
			delete(shapes, far)
		}
	}
}
