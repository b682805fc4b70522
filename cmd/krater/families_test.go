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

	"krater/kernels/tensor"
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

// goldenPrompt is a prompt of a golden with its greedy continuation.
type goldenPrompt struct {
	IDs    []int `json:"input_ids"`
	Greedy []int `json:"greedy_ids"`
}

// goldenPrompts reads the prompts of a golden by name, and its config.
func goldenPrompts(t *testing.T, dir string) (map[string]goldenPrompt, *model.Config) {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var facts struct{ Prompts map[string]goldenPrompt }
	if err := json.Unmarshal(read("facts.json"), &facts); err != nil || len(facts.Prompts) == 0 {
		t.Fatal("no prompts", err)
	}
	cfg, err := model.Parse(read("config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return facts.Prompts, cfg
}

// continued asks for n greedy tokens after ids, and returns their text and how many of ids were cached.
func (s *site) continued(ids []int, n int) (text string, cached int) {
	prompt, _ := json.Marshal(ids) // numbers
	status, _, body := s.do(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, prompt, n))
	var x struct {
		Choices []struct{ Text string }
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(body), &x); status != http.StatusOK || err != nil || len(x.Choices) != 1 {
		s.t.Errorf("%d: %s", status, body)
		return "", 0
	}
	return x.Choices[0].Text, x.Usage.Details.Cached
}

// TestFamiliesOverHTTP: a server with a model of each family gives the golden continuation of each
// prompt: alone, after a prefix that is cached, and beside others, with too little memory for all. It refuses
// images and sounds, whatever the released model takes.
func TestFamiliesOverHTTP(t *testing.T) {
	const tokens, times, blockTokens = 24, 3, 4
	preemptions := 0.0
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		prompts, cfg := goldenPrompts(t, f.Dir)
		longest := 0
		for _, p := range prompts {
			longest = max(longest, (len(p.IDs)+tokens)/blockTokens)
		}
		blocks := longest * 3 / 2 // of 30 for the longest and 88 for all, mostly
		dir := copyDir(t, f.Dir, nil)
		writeIn(t, dir, "tokenizer.json", numbered(cfg.Vocab))
		s := open(t, "--model", dir, "--kv-dtype", "f32", "--kv-cache", fmt.Sprint(int64(blocks)*cfg.KVBlockBytes(blockTokens, tensor.F32)),
			"--block-tokens", fmt.Sprint(blockTokens), "--prefill-chunk", "32", "--max-seqs", "9")
		var crowd []func()
		for name, p := range prompts {
			want := strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Greedy[:tokens]), " ", ","), "[]") + ","
			for _, hit := range []bool{false, true} {
				got, cached := s.continued(p.IDs, tokens)
				if got != want {
					t.Errorf("%s alone, with %d tokens cached: %s, want %s", name, cached, got, want)
				}
				if hit && cached == 0 && len(p.IDs) > blockTokens && cfg.SequenceBytes(tensor.F32) == 0 {
					t.Errorf("%s again: no token was cached", name)
				}
			}
			for range times {
				crowd = append(crowd, func() {
					if got, _ := s.continued(p.IDs, tokens); got != want {
						t.Errorf("%s beside others: %s, want %s", name, got, want)
					}
				})
			}
		}
		s.refusesMedia()
		var all sync.WaitGroup
		for _, ask := range crowd {
			all.Go(ask)
		}
		all.Wait()
		preemptions += s.metrics()["krater:num_preemptions"]
	})
	if preemptions == 0 {
		t.Error("no request was preempted")
	}
}
