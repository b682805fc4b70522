package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/model"
)

// numbered is a tokenizer.json of n tokens, each of which has its number as text. It cannot turn
// text into tokens.
func numbered(n int) string {
	vocab := make(map[string]int, n)
	for i := range n {
		vocab[fmt.Sprintf("%d,", i)] = i
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	text, _ := json.Marshal(map[string]any{ // plain data
		"version": "1.0", "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"pre_tokenizer": byteLevel, "decoder": byteLevel, "added_tokens": []any{},
	})
	return string(text)
}

// TestFamiliesOverHTTP: a server with a model of each family gives the golden continuation of each
// prompt, alone and beside others.
func TestFamiliesOverHTTP(t *testing.T) {
	const tokens, times = 6, 3
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		var facts struct {
			Prompts map[string]struct {
				IDs    []int `json:"input_ids"`
				Greedy []int `json:"greedy_ids"`
			}
		}
		data, err := os.ReadFile(filepath.Join(f.Dir, "facts.json"))
		if err == nil {
			err = json.Unmarshal(data, &facts)
		}
		if err != nil || len(facts.Prompts) == 0 {
			t.Fatal("no prompts", err)
		}
		config, err := os.ReadFile(filepath.Join(f.Dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.Parse(config)
		if err != nil {
			t.Fatal(err)
		}
		dir := copyDir(t, f.Dir, nil)
		writeIn(t, dir, "tokenizer.json", numbered(cfg.Vocab))
		s := open(t, "--model", dir, "--kv-dtype", "f32", "--kv-cache", "4MiB", "--prefill-chunk", "32")
		answer := func(ids []int) (text string) {
			prompt, _ := json.Marshal(ids) // numbers
			status, _, body := s.do(http.MethodPost, "/v1/completions",
				fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, prompt, tokens))
			var x struct{ Choices []struct{ Text string } }
			if err := json.Unmarshal([]byte(body), &x); status != http.StatusOK || err != nil || len(x.Choices) != 1 {
				t.Errorf("%d: %s", status, body)
				return ""
			}
			return x.Choices[0].Text
		}
		var all sync.WaitGroup
		for name, p := range facts.Prompts {
			want := strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Greedy[:tokens]), " ", ","), "[]") + ","
			if got := answer(p.IDs); got != want {
				t.Errorf("%s alone: %s, want %s", name, got, want)
			}
			for range times {
				all.Go(func() {
					if got := answer(p.IDs); got != want {
						t.Errorf("%s beside others: %s, want %s", name, got, want)
					}
				})
			}
		}
		all.Wait()
	})
}
