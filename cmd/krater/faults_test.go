package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replace edits a text file once.
func replace(old, new string) func([]byte) []byte {
	return func(data []byte) []byte { return bytes.Replace(data, []byte(old), []byte(new), 1) }
}

func gone([]byte) []byte { return nil }

func contents(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }

// TestBrokenModels: a folder with a fault is refused with what is wrong, before
// anything is answered.
func TestBrokenModels(t *testing.T) {
	type edit = func([]byte) []byte
	const shard2, index = "model-00002-of-00003.safetensors", "model.safetensors.index.json"
	for _, c := range []struct {
		name  string
		file  string
		edit  edit
		words string
	}{
		{"no config", "config.json", gone, "config.json"},
		{"config is no JSON", "config.json", contents("{"), "config.json"},
		{"config is a list", "config.json", contents("[]"), "config.json"},
		{"no hidden size", "config.json", replace(`"hidden_size"`, `"hiddensize"`), "config.json hidden_size"},
		{"hidden size is text", "config.json", replace(`"hidden_size": 256`, `"hidden_size": "wide"`), "config.json hidden_size"},
		{"negative layers", "config.json", replace(`"num_hidden_layers": 7`, `"num_hidden_layers": -7`), "config.json num_hidden_layers"},
		{"a billion layers", "config.json", replace(`"num_hidden_layers": 7`, `"num_hidden_layers": 1000000000`), "num_hidden_layers"},
		{"too many experts a token", "config.json", replace(`"num_experts_per_tok": 4`, `"num_experts_per_tok": 33`), "num_experts_per_tok"},
		{"no experts at all", "config.json", replace(`"n_routed_experts": 32`, `"n_routed_experts": 0`), "n_routed_experts"},
		{"a foreign family", "config.json", replace(`"deepseek_v2"`, `"mystery"`), "mystery"},
		{"foreign scoring", "config.json", replace(`"softmax"`, `"hardmax"`), "hardmax"},
		{"another vocabulary", "config.json", replace(`"vocab_size": 8192`, `"vocab_size": 8000`), "8192 8000"},
		{"more layers than weights", "config.json", replace(`"num_hidden_layers": 7`, `"num_hidden_layers": 8`), "model.layers.7"},
		{"tensors of another shape", "config.json", replace(`"kv_lora_rank": 64`, `"kv_lora_rank": 32`), "kv_a_proj"},
		{"fewer experts than weights", "config.json", replace(`"n_routed_experts": 32`, `"n_routed_experts": 16`), "mlp.gate"},
		{"bad generation config", "generation_config.json", contents(`{"temperature":-1}`), "generation_config.json temperature"},
		{"a missing shard", shard2, gone, shard2},
		{"a shard cut short", shard2, func(d []byte) []byte { return d[:len(d)-7] }, shard2},
		{"a shard cut in its header", shard2, func(d []byte) []byte { return d[:100] }, shard2},
		{"an empty shard", shard2, contents(""), shard2},
		{"a header without end", shard2, func(d []byte) []byte { return append(binary.LittleEndian.AppendUint64(nil, 1<<62), d[8:]...) }, shard2},
		{"another element type", shard2, replace(`"BF16"`, `"BF17"`), shard2 + " BF17"},
		{"another tensor name", shard2, replace("model.layers.3.", "model.layers.9."), "model.layers"},
		{"no index", index, gone, "safetensors"},
		{"index is no JSON", index, contents("{"), index},
		{"index leads out of the folder", index, replace(shard2, "../"+shard2), ".."},
		{"index names another shard", index, replace(shard2, "model-00009-of-00003.safetensors"), "model-00009-of-00003.safetensors"},
		{"no tokenizer", "tokenizer.json", gone, "tokenizer.json"},
		{"tokenizer is no JSON", "tokenizer.json", contents("{\"model\":"), "tokenizer.json"},
		{"tokenizer is cut", "tokenizer.json", func(d []byte) []byte { return d[:len(d)/2] }, "tokenizer.json"},
		{"a foreign tokenizer", "tokenizer.json", replace(`"BPE"`, `"Unigram"`), "tokenizer.json Unigram"},
		{"tokenizer config is no JSON", "tokenizer_config.json", contents("nonsense"), "tokenizer_config.json"},
		{"a broken template", "tokenizer_config.json", replace("{% endfor %}", "{% endfro %}"), "template"},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := false
			dir := copyDir(t, modelDir, map[string]edit{c.file: func(d []byte) []byte {
				out := c.edit(bytes.Clone(d))
				changed = !bytes.Equal(out, d)
				return out
			}})
			if !changed {
				t.Fatal("the fault is not in the folder")
			}
			refuses(t, 1, []string{"run", "--model", dir, "--max-tokens", "1", "hi"}, strings.Fields(c.words)...)
		})
	}
}

// TestBrokenModelsOfServe: the server ends as well, with status 1.
func TestBrokenModelsOfServe(t *testing.T) {
	for file, words := range map[string]string{"model-00003-of-00003.safetensors": "model-00003-of-00003.safetensors", "tokenizer.json": "tokenizer.json"} {
		dir := copyDir(t, modelDir, map[string]func([]byte) []byte{file: gone})
		refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--model", dir}, words)
	}
	empty := t.TempDir()
	refuses(t, 1, []string{"run", "--model", empty, "hi"}, filepath.Base(empty), "config.json")
	refuses(t, 1, []string{"tokenize", "--model", empty}, "tokenizer.json")
	refuses(t, 2, []string{"run", "--model", write(t, "file", "x"), "hi"}, "--model")
	// A folder without a template still tokenizes, and says what it lacks.
	bare := copyDir(t, modelDir, map[string]func([]byte) []byte{"tokenizer_config.json": gone})
	refuses(t, 1, []string{"run", "--model", bare, "hi"}, "chat template")
	refuses(t, 1, []string{"template", "--model", bare}, "chat template")
	if got := answers(t, "", "run", "--model", bare, "--raw", "--max-tokens", "3", "--temperature", "0", "A lighthouse is"); got == "\n" {
		t.Error("raw text is not continued")
	}
}

// TestOnlyTheNeededFiles: a model folder needs no more than DESIGN says, and
// text commands need no weights.
func TestOnlyTheNeededFiles(t *testing.T) {
	dir := copyDir(t, modelDir, map[string]func([]byte) []byte{
		"generation_config.json": gone, "golden.json": gone, "golden.safetensors": gone, "eval.json": gone, "README.md": gone, "NOTICE": gone, "heldout.txt": gone,
	})
	if got := answers(t, "", "run", "--model", dir, "--temperature", "0", lighthouse); got != readGolden(t).Prompts[0].Answer+"\n" {
		t.Errorf("%q", got)
	}
	text := t.TempDir()
	data, err := os.ReadFile(modelDir + "/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(text, "tokenizer.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := answers(t, "\n", "tokenize", "--model", text); got != "[]\n" {
		t.Errorf("%q", got)
	}
}
