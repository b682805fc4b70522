package model

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// kimiConfig is a config of Kimi K2.5 around that of the DeepSeek-V3 golden, changed.
func kimiConfig(t *testing.T, change m) []byte {
	t.Helper()
	text := edit(t, readFile(t, goldens, "deepseek_v3", "config.json"), change)
	outer, err := json.Marshal(map[string]any{"model_type": "kimi_k25", "vision_config": map[string]any{}, "text_config": json.RawMessage(text)})
	if err != nil {
		t.Fatal(err)
	}
	return outer
}

// TestParseKimi: K2 is a DeepSeek-V3 of another name, K2.5 has it inside, with other names of tensors.
func TestParseKimi(t *testing.T) {
	base := readFile(t, goldens, "deepseek_v3", "config.json")
	v3, err := Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	k2, err := Parse(edit(t, base, m{"model_type": `"kimi_k2"`}))
	if err != nil {
		t.Fatal(err)
	}
	k25, err := Parse(kimiConfig(t, m{"model_type": `"kimi_k2"`, "num_nextn_predict_layers": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	if k2.Family != "kimi_k2" || k25.Family != "kimi_k25" {
		t.Errorf("families %s and %s", k2.Family, k25.Family)
	}
	var names []string
	shapes := map[string][]int{}
	for _, x := range v3.Expected() {
		names = append(names, "language_model."+x.Name)
		shapes["language_model."+x.Name] = x.Shape
	}
	foreign := []string{"vision_tower.encoder.blocks.0.norm0.weight", "mm_projector.pre_norm.weight", "language_model.model.layers.3.eh_proj.weight"}
	shape := func(n string) []int { return shapes[n] }
	if err := k25.CheckTensors(append(foreign, names...), shape); err != nil {
		t.Error(err)
	}
	for _, stray := range []string{"language_model.model.layers.4.eh_proj.weight", "model.norm.weight", "audio_tower.weight"} {
		if err := k25.CheckTensors(append([]string{stray}, names...), shape); !errors.Is(err, ErrTensorStray) || !strings.Contains(err.Error(), stray) {
			t.Errorf("%s: %v", stray, err)
		}
	}
	k2.Family = v3.Family
	if !reflect.DeepEqual(k2, v3) {
		t.Errorf("kimi_k2 is %+v\ndeepseek_v3 %+v", k2, v3)
	}
	for i := range k25.Layers {
		k25.Layers[i].Prefix, k25.Layers[i].Roles = v3.Layers[i].Prefix, v3.Layers[i].Roles
	}
	if d := k25.DraftModel(); d == nil || d.Names().Join != "language_model.model.layers.3.eh_proj.weight" || d.Layers[0].Prefix != "language_model.model.layers.3." {
		t.Errorf("the draft layer of Kimi K2.5: %+v", d)
	}
	k25.Family, k25.Roles, k25.Foreign, k25.Draft = v3.Family, v3.Roles, nil, nil
	if !reflect.DeepEqual(k25, v3) {
		t.Errorf("kimi_k25 is %+v\ndeepseek_v3 %+v", k25, v3)
	}
}

// TestBrokenKimi names the field that cannot be used, where it is.
func TestBrokenKimi(t *testing.T) {
	for _, x := range []brokenCase{
		{m{"model_type": `"llama"`}, "text_config.model_type"},
		{m{"kv_lora_rank": ""}, "text_config.kv_lora_rank"},
		{m{"hidden_act": `"gelu"`}, "text_config.hidden_act"},
		{m{"quantization_config": `{"quant_method":"no_such_method"}`}, "text_config.quantization_config.quant_method"},
	} {
		if _, set := x.change["model_type"]; !set {
			x.change["model_type"] = `"kimi_k2"`
		}
		t.Run(x.fields, func(t *testing.T) { checkFields(t, kimiConfig(t, x.change), x.fields) })
	}
	checkFields(t, []byte(`{"model_type":"kimi_k25"}`), "text_config")
}
