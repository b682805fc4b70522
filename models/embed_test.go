//go:build !nomodel

package models

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// TestDefault: every file is the one in the folder, and the index names exactly the shards.
func TestDefault(t *testing.T) {
	files, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	got := files.Weights()
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "heldout.txt"} {
		if got[name], err = fs.ReadFile(files, name); err != nil {
			t.Error(err)
		}
	}
	for name, b := range got {
		want, err := os.ReadFile(filepath.Join(Name, name))
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s differs from the folder's", name)
		}
	}
	onDisk, err := filepath.Glob(filepath.Join(Name, "model*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	weights := files.Weights()
	if len(weights) != len(onDisk)+1 {
		t.Errorf("%d weight files, the folder has %d shards", len(weights), len(onDisk))
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(weights["model.safetensors.index.json"], &index); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, shard := range index.WeightMap {
		named[shard] = true
		if weights[shard] == nil {
			t.Fatalf("%s is not embedded", shard)
		}
	}
	if len(named) != len(onDisk) {
		t.Errorf("the index names %d shards, the folder has %d", len(named), len(onDisk))
	}
}

// TestAligned: the shards lie where they can be used in place.
func TestAligned(t *testing.T) {
	files, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range files.Weights() {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); strings.HasSuffix(name, ".safetensors") && at%8 != 0 {
			t.Errorf("%s lies at %#x: the program would copy it", name, at)
		}
	}
}

// TestNotCopied: asking twice gives the same memory, and a changed map is the caller's own.
func TestNotCopied(t *testing.T) {
	files, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	const name = "model-00001-of-00003.safetensors"
	first := files.Weights()
	second := files.Weights()
	if unsafe.SliceData(first[name]) != unsafe.SliceData(second[name]) {
		t.Error("copied")
	}
	clear(first)
	if len(files.Weights()) != len(second) {
		t.Error("the map is shared")
	}
	if n := testing.AllocsPerRun(10, func() { files.Weights() }); n > 5 {
		t.Errorf("%v allocations", n)
	}
}

// TestNotice: WordNet's licence is there in full.
func TestNotice(t *testing.T) {
	for _, want := range []string{"WordNet 3.1 Copyright 2011 by Princeton University", "THIS SOFTWARE AND DATABASE IS PROVIDED"} {
		if !strings.Contains(Notice(), want) {
			t.Errorf("the notice lacks %q", want)
		}
	}
}
