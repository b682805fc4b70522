package folder

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/model"
)

// TestExport: a release gets the metadata and the tensors that the Python package gguf writes of
// it.
func TestExport(t *testing.T) {
	seen := 0
	for _, name := range goldens.GGUFNames(t) {
		g, f, text := build(t, name)
		cfg, err := model.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var list []Release
		for _, s := range cfg.Expected() {
			list = append(list, Release{s.Name, s.Shape})
		}
		meta, places, err := Export(g.Config, list)
		if errors.Is(err, ErrArchitecture) {
			if !slices.Contains([]string{"llama3", "mistral", "mixtral", "qwen3_5", "qwen3_5_moe"}, name) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		seen++
		var got, want []string
		for _, p := range meta {
			if !strings.HasSuffix(p.Key, ".block_count") || name != "glm4_moe" { // it counts layers that are left out
				got = append(got, fmt.Sprint(p.Key, " ", p.Value))
			}
		}
		for _, key := range f.Keys() {
			v, _ := f.Value(key)
			if strings.HasSuffix(key, "nextn_predict_layers") || strings.HasSuffix(key, ".block_count") && name == "glm4_moe" {
				continue
			}
			if s, ok := v.Text(); ok {
				want = append(want, key+" "+s)
			} else if b, ok := v.Bool(); ok {
				want = append(want, fmt.Sprint(key, " ", b))
			} else if n, ok := v.Int(); ok {
				want = append(want, fmt.Sprint(key, " ", n))
			} else if x, ok := v.Float(); ok {
				want = append(want, fmt.Sprint(key, " ", float32(x)))
			} else if list, err := f.Bools(key); err == nil {
				want = append(want, fmt.Sprint(key, " ", list))
			}
		}
		same(t, name, got, want)
		got, want = nil, nil
		for _, p := range places {
			got = append(got, fmt.Sprint(p.Name, p.Shape))
		}
		for _, name := range f.Names() {
			if x, _ := f.Tensor(name); !strings.Contains(name, fmt.Sprintf("blk.%d.", len(cfg.Layers))) && name != "rope_freqs.weight" {
				want = append(want, fmt.Sprint(name, x.Shape))
			}
		}
		same(t, name, got, want)
	}
	if seen < 10 {
		t.Errorf("%d families", seen)
	}
}

// same holds two lists against each other, in any order.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, x := range got {
		if !slices.Contains(want, x) {
			t.Errorf("%s: %s is not in the file", what, x)
		}
	}
	for _, x := range want {
		if !slices.Contains(got, x) {
			t.Errorf("%s: %s is missing", what, x)
		}
	}
}
