package model

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseMiniMaxM3 pins every field.
func TestParseMiniMaxM3(t *testing.T) {
	base := readFile(t, goldens, "minimax_m3", "config.json")
	c, err := Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "minimax_m3_vl", Hidden: 96, Vocab: 320, MaxContext: 524288, NormEps: 1e-6, CentredNorms: true, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	full := GQA{Heads: 6, KVHeads: 2, HeadDim: 32, QKNorm: true, NormEps: 1e-6, Scale: float32(1 / math.Sqrt(32)),
		Rope: &RopeConfig{Dim: 16, Theta: 5e6, CosSinScale: 1}}
	sparse := full
	sparse.Index = BlockIndex{Heads: 2, Dim: 32, Block: 4, Chosen: 3, Local: 1, NormEps: 1e-6}
	act := device.Activation{Alpha: 1.702, Limit: 1.5, Shift: 1}
	moe := MoE{Experts: 7, FF: 32, SharedFF: 64, Correction: true, Act: act,
		Router: device.Router{Experts: 7, TopK: 3, Scoring: device.ScoreSigmoid, Normalize: true, Scale: 2}}
	want.Stack(3, miniMaxM3Roles, func(i int) (Mixer, FFN) {
		if i == 0 {
			return full, Dense{FF: 160, Act: act}
		}
		return sparse, moe
	})
	want.rename(func(name string) string { return "language_model." + name })
	want.Foreign = []string{"vision_tower.", "multi_modal_projector.", "patch_merge_mlp."}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if a := c.Layers[1].Mixer.(GQA); a.Sizes(8).Lists != 2 || a.Index.Sizes(8).Width() != 2*3*4 {
		t.Errorf("%+v, %+v", a.Sizes(8), a.Index.Sizes(8))
	}
	c, err = Parse(edit(t, base, m{"text_config.sparse_attention_config.use_sparse_attention": "false"}))
	if err != nil || c.Layers[1].Mixer.(GQA).Index.Chooses() {
		t.Errorf("without sparse attention: %v", err)
	}
}

// TestBrokenMiniMaxM3 names the field that cannot be used.
func TestBrokenMiniMaxM3(t *testing.T) {
	base := readFile(t, goldens, "minimax_m3", "config.json")
	const sparse = "text_config.sparse_attention_config."
	for _, x := range []brokenCase{
		{m{"text_config": ""}, "text_config"},
		{m{"text_config.model_type": `"minimax_m2"`}, "text_config.model_type"},
		{m{"text_config.hidden_act": `"gelu"`}, "text_config.hidden_act"},
		{m{"text_config.num_local_experts": "2"}, "text_config.num_experts_per_tok"},
		{m{"text_config.rotary_dim": "15"}, "text_config.rotary_dim"},
		{m{"text_config.qk_norm_type": `"per_layer"`}, "text_config.qk_norm_type"},
		{m{"text_config.use_qk_norm": "false"}, "text_config.use_qk_norm"},
		{m{"text_config.scoring_func": `"softmax"`}, "text_config.scoring_func"},
		{m{"text_config.attention_bias": "true"}, "text_config.attention_bias"},
		{m{"text_config.dense_intermediate_size": ""}, "text_config.dense_intermediate_size"},
		{m{"text_config.shared_intermediate_size": ""}, "text_config.shared_intermediate_size"},
		{m{"text_config.n_shared_experts": "2"}, "text_config.n_shared_experts"},
		{m{"text_config.moe_layer_freq": "[0, 1]"}, "text_config.moe_layer_freq"},
		{m{"text_config.moe_layer_freq": "[0, 1, 2]"}, "text_config.moe_layer_freq"},
		{m{"text_config.moe_layer_freq": ""}, "text_config.mlp_layer_types"},
		{m{"text_config.moe_layer_freq": "", "text_config.mlp_layer_types": `["dense", "sparse", "none"]`}, "text_config.mlp_layer_types"},
		{m{sparse + "sparse_attention_freq": "[0, 1, 1, 1]"}, sparse + "sparse_attention_freq"},
		{m{sparse + "sparse_num_index_heads": "1"}, sparse + "sparse_num_index_heads"},
		{m{sparse + "sparse_index_dim": "8"}, sparse + "sparse_index_dim"},
		{m{sparse + "sparse_block_size": "0"}, sparse + "sparse_block_size"},
		{m{sparse + "sparse_local_block": "4"}, sparse + "sparse_local_block"},
		{m{sparse + "sparse_local_block": "0"}, sparse + "sparse_local_block"},
		{m{sparse + "sparse_score_type": `"mean"`}, sparse + "sparse_score_type"},
		{m{sparse + "sparse_init_block": "1"}, sparse + "sparse_init_block"},
		{m{sparse + "sparse_disable_index_value": "[0, 1, 0]"}, sparse + "sparse_disable_index_value"},
		{m{"tie_word_embeddings": "true"}, "tie_word_embeddings"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}
