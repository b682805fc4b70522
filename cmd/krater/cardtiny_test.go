//go:build cuda

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/source"
	"krater/stages/weights"
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
	set, err := weights.Open(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	head, data := map[string]any{}, []byte{}
	for name, x := range set.All() {
		var layer, expert int
		if n, _ := fmt.Sscanf(name, "model.layers.%d.mlp.experts.%d.", &layer, &expert); n > 0 && (layer >= lessLayers || expert >= lessExperts) {
			continue
		}
		if x.DType != tensor.BF16 {
			t.Fatalf("%s is %s", name, x.DType)
		}
		shape, bytes, rows := slices.Clone(x.Shape), x.Data, x.Shape[0]
		switch {
		case strings.HasSuffix(name, ".mlp.gate.weight"):
			rows = lessExperts
		case tokens > 0 && (strings.HasPrefix(name, "model.embed_tokens.") || strings.HasPrefix(name, "lm_head.")):
			rows = tokens
		}
		shape[0], bytes = rows, bytes[:len(bytes)/shape[0]*rows]
		head[name] = map[string]any{"dtype": "BF16", "shape": shape, "data_offsets": []int{len(data), len(data) + len(bytes)}}
		data = append(data, bytes...)
	}
	if text, err = json.Marshal(head); err != nil {
		t.Fatal(err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	put("model.safetensors", slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data))
}
