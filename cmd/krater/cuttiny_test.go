package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/source"
)

// What lessTiny keeps of krater-tiny: layers, of which all but the first have experts, experts of a
// layer and tokens.
const lessLayers, lessExperts, lessTokens = 4, 16, 1024

// lessTiny is the folder of krater-tiny in a long test. In a short one it is one of its first layers
// and experts and the first rows of its embedding and head: learned weights, so answers vary, for less
// than half the work. Then text is bytes: the tokenizer is made.
func lessTiny(t testing.TB) string {
	t.Helper()
	return shortOr(t, modelDir, lessTokens)
}

// lessOf are tokens of krater-tiny as tokens that lessTiny has.
func lessOf(ids []int32) []int32 {
	if testing.Short() {
		for i := range ids {
			ids[i] %= lessTokens
		}
	}
	return ids
}

// fewLayers is lessTiny with all tokens.
func fewLayers(t testing.TB) string {
	t.Helper()
	return shortOr(t, modelDir, 0)
}

// cutOnce has the folders that were made for short tests, by their tokens.
var cutOnce = map[int]string{}

// shortOr is the folder long, or in short tests a cut one, which is made once.
func shortOr(t testing.TB, long string, tokens int) string {
	t.Helper()
	if !testing.Short() {
		return long
	}
	if cutOnce[tokens] == "" {
		dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), fmt.Sprint("cut", tokens), "krater-tiny") // which TestMain removes
		cutTiny(t, dir, tokens)
		cutOnce[tokens] = dir
	}
	return cutOnce[tokens]
}

// cutTiny writes a part of krater-tiny with the first tokens of its vocabulary; 0: all.
func cutTiny(t testing.TB, dir string, tokens int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(modelDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	config := decode[map[string]any](t, string(read("config.json")))
	config["num_hidden_layers"], config["n_routed_experts"] = lessLayers, lessExperts
	if tokens == 0 {
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			put(name, read(name))
		}
	} else {
		config["vocab_size"] = tokens
		put("tokenizer.json", source.MadeTokenizer(tokens))
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	put("config.json", text)
	for _, name := range []string{"generation_config.json", "heldout.txt"} {
		put(name, read(name))
	}
	files, err := filepath.Glob(filepath.Join(modelDir, "model-*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	put("model.safetensors", cutTensors(t, files, func(name string, rows int) int {
		var layer, expert int
		n, _ := fmt.Sscanf(name, "model.layers.%d.mlp.experts.%d.", &layer, &expert)
		switch {
		case n > 0 && (layer >= lessLayers || expert >= lessExperts):
			return 0
		case strings.HasSuffix(name, ".mlp.gate.weight"):
			return lessExperts
		case tokens > 0 && (strings.HasPrefix(name, "model.embed_tokens.") || strings.HasPrefix(name, "lm_head.")):
			return tokens
		}
		return rows
	}))
}

// cutTensors makes a safetensors file of the first rows of tensors that other files have, as many as
// keep says of a tensor; 0: it is left out.
func cutTensors(t testing.TB, files []string, keep func(name string, rows int) int) []byte {
	t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	head, data := map[string]entry{}, []byte{}
	for _, path := range files {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := 8 + int(binary.LittleEndian.Uint64(file))
		all := decode[map[string]json.RawMessage](t, string(file[8:at]))
		delete(all, "__metadata__")
		for _, name := range slices.Sorted(maps.Keys(all)) {
			x := decode[entry](t, string(all[name]))
			bytes := file[at:][x.Offsets[0]:x.Offsets[1]]
			if len(x.Shape) > 0 {
				rows := keep(name, x.Shape[0])
				if rows == 0 {
					continue
				}
				bytes, x.Shape[0] = bytes[:len(bytes)/x.Shape[0]*rows], rows
			}
			x.Offsets = [2]int{len(data), len(data) + len(bytes)}
			head[name], data = x, append(data, bytes...)
		}
	}
	text, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data)
}

// longPrompts are golden folders whose longest prompt says more than the others do: it is longer than a
// window or a piece of a state, or the first of its kind of attention.
var longPrompts = map[string]bool{"deepseek_v2_lite": true, "gpt_oss": true, "llama3": true, "mistral": true, "qwen3_next": true}

// fewerGoldens is a folder's golden vectors for a short test: with three tokens after a prompt, and
// the longest prompt in longPrompts only.
func fewerGoldens(t testing.TB, f goldens.Folder) string {
	t.Helper()
	dir := t.TempDir()
	data := cutTensors(t, []string{filepath.Join(f.Dir, "goldens.safetensors")}, func(name string, rows int) int {
		prompt, what, _ := strings.Cut(name, ".")
		switch {
		case !longPrompts[f.Name] && prompt == "p96":
			return 0
		case what == "greedy_ids" || what == "greedy_margin":
			return min(rows, 3)
		}
		return rows
	})
	if err := os.WriteFile(filepath.Join(dir, "goldens.safetensors"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// onePrompt is a copy of krater-tiny's folder whose golden file has the first prompt alone.
func onePrompt(t testing.TB, model string) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(model, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	golden := decode[map[string]any](t, string(file))
	golden["prompts"] = golden["prompts"].([]any)[:1]
	if file, err = json.Marshal(golden); err != nil {
		t.Fatal(err)
	}
	return copyDir(t, model, map[string]func([]byte) []byte{"golden.json": func([]byte) []byte { return file }})
}
