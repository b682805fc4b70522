package main

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"krater/actors/local"
	"krater/actors/local/plan"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/source"
)

// changed are the files of src, one of them with a byte more.
func changed(t *testing.T, src *source.Source, name string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	for _, file := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		data, err := src.Read(file, true)
		if err != nil {
			t.Fatal(err)
		}
		if file == name {
			data = append(append([]byte{}, data...), '\n')
		}
		if data != nil {
			files[file] = &fstest.MapFile{Data: data}
		}
	}
	return files
}

// TestIdentity: what is kept of a prefix belongs to one model, tokenizer, template and KV
// type; the same prompt under another finds nothing.
func TestIdentity(t *testing.T) {
	src, err := source.Open("")
	if err != nil {
		t.Skip(err)
	}
	of := func(s source.Source, o load.Options) [32]byte {
		t.Helper()
		s.Seen = nil
		if _, _, err := s.Config(); err != nil {
			t.Fatal(err)
		}
		tok, config, err := s.Tokenizer()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Template(tok, config); err != nil {
			t.Fatal(err)
		}
		return (&local.Model{Source: &s, Plan: &plan.Plan{Load: o}}).Identity()
	}
	plain := load.Options{KVType: tensor.BF16}
	seen := map[[32]byte]string{of(*src, plain): "nothing"}
	note := func(what string, sum [32]byte) {
		if old, ok := seen[sum]; ok {
			t.Errorf("with another %s the identity is that with another %s", what, old)
		}
		seen[sum] = what
	}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		s := *src
		s.Files = changed(t, src, name)
		note(name, of(s, plain))
	}
	s := *src
	s.Name += "2"
	note("name", of(s, plain))
	note("KV type", of(*src, load.Options{KVType: tensor.F32}))
	note("precision", of(*src, load.Options{KVType: tensor.BF16, Precision: load.Precision{Attention: tensor.INT8.By(0)}}))
	if of(*src, plain) != of(*src, plain) {
		t.Error("two starts differ")
	}
}
