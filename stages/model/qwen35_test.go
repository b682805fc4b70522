package model

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestParseQwen35 pins every field, of the mixture and of the dense model, each with the part for images
// and without it.
func TestParseQwen35(t *testing.T) {
	moe := MoE{Experts: 6, FF: 32, SharedFF: 64, SharedGate: true,
		Router: device.Router{Experts: 6, TopK: 2, Scoring: device.ScoreSoftmax, Normalize: true, Scale: 1}}
	for name, ffn := range map[string]FFN{"qwen3_5_moe": moe, "qwen3_5": Dense{FF: 160}} {
		whole := readFile(t, goldens, name, "config.json")
		for family, config := range map[string][]byte{name: whole, name + "_text": textConfig(t, whole)} {
			c, err := Parse(config)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Ropes() {
				r.InvFreq = nil // held to the golden by TestGoldens
			}
			want := &Config{
				Family: family, Hidden: 96, Vocab: 320, MaxContext: 262144, NormEps: 1e-6, CentredNorms: true, DType: tensor.BF16,
				TieEmbed: name == "qwen3_5", Foreign: []string{"mtp."}, BOS: 0, EOS: []int32{1}, Pad: -1,
			}
			a := GQA{Heads: 6, KVHeads: 2, HeadDim: 32, QKNorm: true, NormEps: 1e-6, Gate: true, Scale: float32(softmax(32)),
				Rope: &RopeConfig{Dim: 16, Theta: 1e7, CosSinScale: 1}}
			d := DeltaNet{device.DeltaNet{KeyHeads: 2, ValueHeads: 6, KeyDim: 64, ValueDim: 32, Taps: 4}, 1e-6}
			roles, below := qwen3NextRoles, "model."
			if family == name {
				below = "model.language_model."
				roles = Usual(roles, Roles{"embed": below + "embed_tokens.weight", "norm": below + "norm.weight", "layer": below + "layers.*."})
				want.Foreign = append(want.Foreign, "model.visual.")
			}
			want.hybrid(3, func(i int) bool { return i == 2 }, a, roles, d, qwen3DeltaRoles, ffn)
			want.Layers[2].Roles = qwen3NextRoles
			if name == "qwen3_5_moe" {
				want.Fused = []Fused{
					{Name: "mlp.experts.gate_up_proj", Parts: []FusedPart{{"expert.gate", 0, 1}, {"expert.up", 32, 1}}},
					{Name: "mlp.experts.down_proj", Parts: []FusedPart{{"expert.down", 0, 1}}},
				}
			}
			draft := c.DraftModel()
			for role, name := range map[string]string{
				"embed": below + "embed_tokens.weight", "embed_norm": "mtp.pre_fc_norm_embedding.weight", "hidden_norm": "mtp.pre_fc_norm_hidden.weight",
				"join": "mtp.fc.weight", "norm": "mtp.norm.weight", "head": c.Names().Head,
			} {
				if draft.Roles[role] != name {
					t.Errorf("%s: the draft layer's %s is %s", family, role, draft.Roles[role])
				}
			}
			if l := draft.Layers[0]; draft.TieEmbed != c.TieEmbed || l.Mixer.(GQA).Heads != 6 || l.FFN != ffn || l.Name("q") != "mtp.layers.0.self_attn.q_proj.weight" {
				t.Errorf("%s: the draft layer is %+v", family, draft)
			}
			c.Draft = nil
			if !reflect.DeepEqual(c, want) {
				t.Errorf("got  %+v\nwant %+v", c, want)
			}
			for tensor, ignored := range map[string]bool{
				"mtp.fc.weight": true, "model.visual.blocks.0.norm1.weight": family == name, "lm_head.weight": name == "qwen3_5",
				"model.language_model.visual.weight": false, "visual.weight": false,
			} {
				if c.ignored(tensor) != ignored {
					t.Errorf("%s: %s ignored: %t", family, tensor, !ignored)
				}
			}
		}
	}
}

// textConfig is the text_config of a config.
func textConfig(t *testing.T, config []byte) []byte {
	t.Helper()
	var whole struct {
		Text json.RawMessage `json:"text_config"`
	}
	if err := json.Unmarshal(config, &whole); err != nil {
		t.Fatal(err)
	}
	return whole.Text
}

// TestBrokenQwen35 names the field that cannot be used.
func TestBrokenQwen35(t *testing.T) {
	base := readFile(t, goldens, "qwen3_5_moe", "config.json")
	for _, x := range []brokenCase{
		{m{"text_config": ""}, "text_config"},
		{m{"tie_word_embeddings": "true"}, "tie_word_embeddings"},
		{m{"text_config.model_type": `"qwen3_5_text"`}, "text_config.model_type"},
		{m{"text_config.attn_output_gate": "false"}, "text_config.attn_output_gate"},
		{m{"text_config.output_gate_type": `"sigmoid"`}, "text_config.output_gate_type"},
		{m{"text_config.hidden_act": `"gelu"`}, "text_config.hidden_act"},
		{m{"text_config.shared_expert_intermediate_size": ""}, "text_config.shared_expert_intermediate_size"},
		{m{"text_config.num_experts_per_tok": "7"}, "text_config.num_experts_per_tok"},
		{m{"text_config.linear_num_value_heads": "5"}, "text_config.linear_num_value_heads"},
		{m{"text_config.layer_types": `["full_attention"]`}, "text_config.layer_types"},
		{m{"text_config.attention_bias": "true"}, "text_config.attention_bias"},
	} {
		t.Run(fmt.Sprint(x.change), func(t *testing.T) { checkFields(t, edit(t, base, x.change), x.fields) })
	}
}

// TestQwen35Tied: the wrapper's tie_word_embeddings counts where text_config has none.
func TestQwen35Tied(t *testing.T) {
	base := readFile(t, goldens, "qwen3_5", "config.json")
	for _, tied := range []string{"true", "false"} {
		c, err := Parse(edit(t, base, m{"text_config.tie_word_embeddings": "", "tie_word_embeddings": tied}))
		if err != nil || fmt.Sprint(c.TieEmbed) != tied {
			t.Errorf("tied %s: %+v, %v", tied, c, err)
		}
	}
}
