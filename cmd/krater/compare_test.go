package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages/compare"
)

// TestCompareNamesTheMistake: a model whose config divides the same matrices into other heads is
// held against the vectors that PyTorch computed.
func TestCompareNamesTheMistake(t *testing.T) {
	golden := filepath.Join("..", "..", "testdata", "goldens", "qwen2")
	dir := t.TempDir()
	weights, err := os.ReadFile(filepath.Join(golden, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(golden, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	config["num_attention_heads"], config["num_key_value_heads"] = 8, 4
	delete(config, "head_dim")
	if data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"config.json": data, "model.safetensors": weights} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := execute(t, "", "compare", "--model", dir, "--golden", golden)
	const named = "a wrong head count: 4 heads of 32 and 2 for keys, not 8 of 16 and 4"
	if o.status != 1 || !strings.Contains(o.out, "The first operator that differs: inv_freq") || !strings.Contains(o.out, named) {
		t.Errorf("%d %s", o.status, o.out)
	}
	o = execute(t, "", "compare", "--model", dir, "--golden", golden, "--json")
	var r compare.Report
	if err := json.Unmarshal([]byte(o.out), &r); err != nil || o.status != 1 {
		t.Fatalf("%d, %v: %s", o.status, err, o.out)
	}
	if d := r.Divergence; d == nil || d.Op != "inv_freq" || len(d.Suspects) == 0 || d.Suspects[0].What != named {
		t.Errorf("got %+v", d)
	}
}

// TestCompareNamesTypes: a comparison begins with what the files hold where that is encoded.
func TestCompareNamesTypes(t *testing.T) {
	out := answers(t, "", "compare", "--model", "../../testdata/goldens/deepseek_v3_fp8")
	if !strings.HasPrefix(out, "the files have F8_E4M3_128X128 ") {
		t.Errorf("%.200s", out)
	}
}
