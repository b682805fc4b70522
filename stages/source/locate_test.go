package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocate: a path has precedence over a name in the cache, and errors name the remedy.
func TestLocate(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	t.Setenv("HF_HUB_CACHE", filepath.Join(root, "hub"))
	for _, name := range []string{
		"hub/models--acme--tiny/snapshots/r1/config.json", "hub/models--acme--tiny/snapshots/r1/model.safetensors", "hub/models--acme--tiny/snapshots/r1/t-Q4_0.gguf",
		"hub/models--acme--here/snapshots/r1/config.json", "hub/models--acme--here/snapshots/r1/model.safetensors",
		"acme/here/config.json", "x.gguf", "x.bin", "file",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := filepath.Join(root, "hub/models--acme--tiny/snapshots/r1")
	for word, want := range map[string]string{
		"acme/tiny": snapshot, "acme/tiny@r1": snapshot, "acme/tiny:q4_0": snapshot + "/t-Q4_0.gguf", "hub/models--acme--tiny": snapshot,
		snapshot: snapshot, "acme/here": "acme/here", "acme": "acme", "hub": "hub", "x.gguf": "x.gguf",
	} {
		if got, err := Locate(word); err != nil || got != want {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
	for word, want := range map[string]string{
		"acme/none": "Download it with: krater pull acme/none", "acme/tiny:Q8_0": "there are Q4_0. Download it with: krater pull acme/tiny:Q8_0", "file/tiny": "krater pull file/tiny",
		"x.bin": "it is a file", "none": "krater models lists", "./acme/none": "krater models lists",
	} {
		if got, err := Locate(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
	if s, err := Open("acme/tiny"); err != nil || s.Name != "acme/tiny" || s.Dir != snapshot {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Open("acme/tiny:Q4_0"); err == nil || !strings.Contains(err.Error(), "t-Q4_0.gguf: ") {
		t.Errorf("%v", err)
	}
}
