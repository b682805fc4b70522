package goldens

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const config = `{"model_type":"qwen2","num_hidden_layers":1,"hidden_size":8,"vocab_size":8,"max_position_embeddings":8,
	"rms_norm_eps":1e-6,"intermediate_size":8,"num_attention_heads":1,"num_key_value_heads":1,"rope_theta":1e4}`

func TestRead(t *testing.T) {
	for name, x := range map[string]struct {
		list, want string // folders that run, or a part of the error
	}{
		"runs and skipped":  {"# a comment\n\nother not written yet\n", "known"},
		"an unknown folder": {"", "known other"},
		"no reason":         {"other\n", "no reason for other"},
		"runs but listed":   {"other x\nknown x\n", "reads the config of known"},
		"not there":         {"other x\ngone x\n", "no folder gone"},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"unsupported.txt": x.list, "known/config.json": config, "other/config.json": `{"model_type":"other"}`, "README.md": ""} {
			file = filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		all, err := read(dir)
		if err != nil {
			if !strings.Contains(err.Error(), x.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var run []string
		for _, f := range all {
			if f.Missing == "" {
				run = append(run, f.Name)
			}
		}
		if got := strings.Join(run, " "); got != x.want {
			t.Errorf("%s: %q run, want %q", name, got, x.want)
		}
	}
}

func TestSettings(t *testing.T) {
	counts := []int{3, 4, 1, 2}
	for value, want := range map[string]int{"": 4, "all": 24} {
		t.Setenv("KRATER_GOLDENS", value)
		list := Settings(counts...)
		seen := map[string]bool{}
		values := make([]map[int]bool, len(counts))
		for _, s := range list {
			seen[string(rune(s[0]))+string(rune(s[1]))+string(rune(s[2]))+string(rune(s[3]))] = true
			for i, v := range s {
				if values[i] == nil {
					values[i] = map[int]bool{}
				}
				values[i][v] = true
			}
		}
		if len(list) != want || len(seen) != want {
			t.Errorf("%q: %d combinations, %d different, want %d", value, len(list), len(seen), want)
		}
		for i, c := range counts {
			if len(values[i]) != c || slices.ContainsFunc(list, func(s []int) bool { return s[i] < 0 || s[i] >= c }) {
				t.Errorf("%q: setting %d has %d of %d values", value, i, len(values[i]), c)
			}
		}
	}
}
