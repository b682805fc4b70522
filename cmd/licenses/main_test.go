package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestFileIsCurrent: the committed file has what the modules of today say.
func TestFileIsCurrent(t *testing.T) {
	want, err := Texts(root)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(root, Path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the module cache has: go run ./cmd/licenses makes it again", Path)
	}
	for _, words := range []string{
		"Krater (LICENSE)", "Go's runtime and standard library (LICENSE)", "gorgonia.org/cu v", "(licenses/ftl.txt)",
		"internal/queue/goring/LICENSE", "TERMS AND CONDITIONS FOR USE, REPRODUCTION", "Permission is hereby granted, free of charge",
	} {
		if !strings.Contains(string(want), words) {
			t.Errorf("the texts have no %q", words)
		}
	}
}

// TestNoLicence: a module whose licence is not found is an error, and copies of others' code in it
// are looked at.
func TestNoLicence(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"licence.go", "src/copying.txt", "src/deep/UNLICENSE", "src/other/LICENSE-MIT"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := &part{name: "m", dir: dir}
	if list, err := p.files(); err != nil || len(list) != 0 {
		t.Errorf("%q %v", list, err)
	}
	p.folders = map[string]bool{"src": true, "src/deep": true}
	if list, err := p.files(); err != nil || strings.Join(list, " ") != "src/copying.txt src/deep/UNLICENSE" {
		t.Errorf("%q %v", list, err)
	}
}
