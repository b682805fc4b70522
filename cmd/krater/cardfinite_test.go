//go:build cuda

package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/cuda"
)

// TestCardNotFinite: a GPU notes keys and values that are NaN where it stores them. The request
// that has such a token fails with the layer's name; another one is answered.
func TestCardNotFinite(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	spoilToken(t, dir, "~")
	for prompt, fails := range map[string]bool{"tilde ~": true, "no such sign": false} {
		o := krater(t, "", "run", "--model", dir, "--device", "cuda", "--max-tokens", "3", "--kv-cache", "4MiB", "--max-seqs", "2", prompt)
		if fails != (o.status != 0) || fails != strings.Contains(o.err, "layer 0, StoreRows, position ") {
			t.Errorf("%q: status %d, %s", prompt, o.status, o.err)
		}
	}
}

// spoilToken fills a token's row of the embedding with NaN.
func spoilToken(t *testing.T, dir, token string) {
	t.Helper()
	var tokenizer struct {
		Model struct{ Vocab map[string]int }
	}
	var index struct {
		Map map[string]string `json:"weight_map"`
	}
	for name, v := range map[string]any{"tokenizer.json": &tokenizer, "model.safetensors.index.json": &index} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const table = "model.embed_tokens.weight"
	path := filepath.Join(dir, index.Map[table])
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		DType   string
		Shape   []int
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	x := header[table]
	id, ok := tokenizer.Model.Vocab[token]
	if !ok || x.DType != "BF16" {
		t.Fatalf("token %q, table %+v", token, x)
	}
	row := file[8+int(n)+x.Offsets[0]+2*id*x.Shape[1]:][:2*x.Shape[1]]
	for i := 0; i < len(row); i += 2 {
		binary.LittleEndian.PutUint16(row[i:], 0x7fc0)
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}
