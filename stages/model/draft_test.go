package model

import "testing"

// TestDraftTensors: a draft layer needs the tensors that its golden folder has, and no other model does.
func TestDraftTensors(t *testing.T) {
	for name, join := range map[string]string{"../drafts/deepseek_v3_mtp": "model.layers.2.eh_proj.weight", "qwen3_5_moe": "mtp.fc.weight"} {
		c, err := Parse(readFile(t, goldens, name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		shapes := map[string][]int{}
		for _, x := range c.DraftModel().Expected() {
			shapes[x.Name] = x.Shape
		}
		if s := shapes[join]; len(s) != 2 || s[0] != 96 || s[1] != 192 {
			t.Errorf("%s: %s is %v", name, join, s)
		}
		for _, x := range c.Expected() {
			if _, both := shapes[x.Name]; both && x.Name != c.Names().Embed && x.Name != c.Names().Head {
				t.Errorf("%s: the model and its draft layer have %s", name, x.Name)
			}
		}
	}
	for name, change := range map[string]m{
		"qwen3_5":     {"text_config.mtp_num_hidden_layers": "0"},
		"qwen3_5_moe": {"text_config.mtp_use_dedicated_embeddings": "true"}, // not described
		"deepseek_v3": {"num_nextn_predict_layers": "0"},
	} {
		c, err := Parse(edit(t, readFile(t, goldens, name, "config.json"), change))
		if err != nil || c.DraftModel() != nil {
			t.Errorf("%s with %v: %+v, %v", name, change, c.Draft, err)
		}
	}
	checkFields(t, edit(t, readFile(t, goldens, "qwen3_5", "config.json"), m{"text_config.mtp_num_hidden_layers": "-1"}), "text_config.mtp_num_hidden_layers")
}
