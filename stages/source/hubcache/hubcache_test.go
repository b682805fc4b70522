package hubcache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for word, want := range map[string]Ref{
		"acme/tiny":                      {"acme/tiny", "", ""},
		"acme/Tiny-1.5_b:Q4_K_M":         {"acme/Tiny-1.5_b", "Q4_K_M", ""},
		"acme/tiny@v1":                   {"acme/tiny", "", "v1"},
		"acme/tiny:UD-Q2_K_XL@refs/pr/1": {"acme/tiny", "UD-Q2_K_XL", "refs/pr/1"},
		"tiny":                           {}, "": {}, "/acme/tiny": {}, "acme/": {}, "../tiny": {}, "acme/..": {}, "a/b/c": {}, "acme/tiny:": {}, "acme/tiny@": {},
		"acme/tiny@../../x": {}, "acme/tiny@a//b": {}, "acme/tiny@/x": {}, "acme/tiny x": {}, "./acme": {}, "acme/tiny\n": {}, "a/" + strings.Repeat("b", 200): {},
	} {
		got, err := Parse(word)
		if got != want || (err == nil) != (want.Repo != "") || err == nil && got.String() != word {
			t.Errorf("%q: %+v, %v", word, got, err)
		}
	}
}

// cacheOf makes files in a folder; names that end in -> are links to nothing.
func cacheOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, data := range files {
		name, dangling := strings.CutSuffix(name, "->")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		err := error(nil)
		if dangling {
			err = os.Symlink("../../blobs/none", path)
		} else {
			err = os.WriteFile(path, []byte(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestLocate: which snapshot a name leads to, and why others lead to none.
func TestLocate(t *testing.T) {
	cache := cacheOf(t, map[string]string{
		"models--acme--two/refs/main":                                      "r2\n",
		"models--acme--two/refs/v1":                                        "r1",
		"models--acme--two/snapshots/r1/config.json":                       "{}",
		"models--acme--two/snapshots/r1/model.safetensors":                 "",
		"models--acme--two/snapshots/r2/config.json":                       "{}",
		"models--acme--two/snapshots/r2/model-1-of-1.safetensors":          "",
		"models--acme--loose/snapshots/r1/config.json":                     "{}",
		"models--acme--loose/snapshots/r1/model.safetensors":               "",
		"models--acme--loose/snapshots/r2/config.json":                     "{}",
		"models--acme--loose/snapshots/r2/model.safetensors":               "",
		"models--acme--only/snapshots/r1/config.json":                      "{}",
		"models--acme--only/snapshots/r1/model.safetensors":                "",
		"models--acme--half/refs/main":                                     "r1",
		"models--acme--half/snapshots/r1/config.json":                      "{}",
		"models--acme--half/snapshots/r1/model-00001-of-00002.safetensors": "",
		"models--acme--torn/refs/main":                                     "r1",
		"models--acme--torn/snapshots/r1/config.json":                      "{}",
		"models--acme--torn/snapshots/r1/model.safetensors->":              "",
		"models--acme--none/refs/main":                                     "r1",
		"models--acme--none/snapshots/r1/config.json":                      "{}",
		"models--acme--sly/refs/main":                                      "../../models--acme--two/snapshots/r1",
		"models--acme--g/refs/main":                                        "r1",
		"models--acme--g/snapshots/r1/m-Q4_K_M.gguf":                       "",
		"models--acme--g/snapshots/r1/big/m-Q8_0-00002-of-00002.gguf":      "",
		"models--acme--g/snapshots/r1/big/m-Q8_0-00001-of-00002.gguf":      "",
		"models--acme--g/snapshots/r1/m-Q2_K.gguf->":                       "",
		"models--acme--g1/snapshots/r1/m.gguf":                             "",
	})
	for word, want := range map[string]string{
		"acme/two": "models--acme--two/snapshots/r2", "Acme/TWO": "models--acme--two/snapshots/r2", "acme/two@v1": "models--acme--two/snapshots/r1",
		"acme/two@r1": "models--acme--two/snapshots/r1", "acme/only": "models--acme--only/snapshots/r1",
		"acme/g:q4_k_m": "models--acme--g/snapshots/r1/m-Q4_K_M.gguf", "acme/g:Q8_0@main": "models--acme--g/snapshots/r1/big/m-Q8_0-00001-of-00002.gguf",
		"acme/g1": "models--acme--g1/snapshots/r1/m.gguf",
	} {
		ref, err := Parse(word)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ref.Locate(cache); err != nil || got != filepath.Join(cache, want) {
			t.Errorf("%s: %s, %v", word, got, err)
		}
	}
	for word, x := range map[string]struct {
		err  error
		want string
	}{
		"acme/unknown": {ErrAbsent, ""}, "acme/two@v2": {ErrAbsent, ""}, "acme/sly": {ErrAbsent, ""},
		"acme/loose": {ErrSeveral, "r1, r2"}, "acme/half": {ErrUnfinished, "1 of 2 files of model-of-00002"}, "acme/torn": {ErrUnfinished, "model.safetensors is missing"},
		"acme/none": {ErrUnfinished, "no config.json with safetensors"}, "acme/g": {ErrSeveral, "Q2_K, Q4_K_M, Q8_0"}, "acme/g:Q2_K": {ErrUnfinished, "m-Q2_K.gguf is missing"},
		"acme/g:Q3": {ErrAbsent, "no .gguf file is Q3; there are Q2_K"}, "acme/two:Q3": {ErrAbsent, "no .gguf files"},
	} {
		ref, err := Parse(word)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ref.Locate(cache); got != "" || !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
}

// TestSelect: names that fit better come first, and several that fit alike are named.
func TestSelect(t *testing.T) {
	names := []string{"M-Q4_K_XL.gguf", "M-UD-Q4_K_XL.gguf", "M-IQ4_XS.gguf", "M-Q4_0.GGUF", "M-Q6_K-v2.gguf", "M-F16.imatrix.gguf", "notes.txt"}
	for quant, want := range map[string]string{
		"ud-q4_k_xl": "M-UD-Q4_K_XL.gguf", "M-Q4_K_XL": "M-Q4_K_XL.gguf", "Q4_0": "M-Q4_0.GGUF", "iq4_xs": "M-IQ4_XS.gguf", "Q6_K": "M-Q6_K-v2.gguf", "Q4_XS": "", "F16": "", "Q4": "",
	} {
		got, err := Select(names, quant)
		if want == "" && err == nil || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, %v", quant, got, err)
		}
	}
	if _, err := Select(names, "Q4_K_XL"); !errors.Is(err, ErrSeveral) || !strings.Contains(err.Error(), "M-Q4_K_XL, M-UD-Q4_K_XL") {
		t.Errorf("%v", err)
	}
}

func TestRepoOf(t *testing.T) {
	for path, want := range map[string]string{
		"/c/models--acme--tiny/snapshots/abc":              "acme/tiny",
		"/c/models--acme--big--moe/snapshots/abc/x/y.gguf": "acme/big--moe",
		"/c/models--acme--tiny/snapshots":                  "", "/c/models--acme--tiny": "", "/c/models--acme/snapshots/abc": "", "/models/tiny": "", "/": "",
	} {
		if got := RepoOf(path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// TestDir: the cache is where Hugging Face's tools have it.
func TestDir(t *testing.T) {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/home/u")
	for _, x := range [][3]string{
		{"HOME", "/home/u", "/home/u/.cache/huggingface/hub"}, {"XDG_CACHE_HOME", "/x", "/x/huggingface/hub"}, {"HF_HOME", "/hf", "/hf/hub"},
		{"HUGGINGFACE_HUB_CACHE", "/old", "/old"}, {"HF_HUB_CACHE", "/hub", "/hub"},
	} {
		t.Setenv(x[0], x[1])
		if got := Dir(); got != x[2] {
			t.Errorf("%s: %s", x[0], got)
		}
	}
}

func TestFind(t *testing.T) {
	root := cacheOf(t, map[string]string{
		"models/a/config.json":                                            "{}",
		"models/a/model-00001-of-00002.safetensors":                       "",
		"models/b/config.json":                                            "{}", // no weights
		"models/c/notes.txt":                                              "",
		"models/g/x-Q4_0.gguf":                                            "",
		"models/g/y-00001-of-00002.gguf":                                  "", // a part is missing
		"models/z.gguf":                                                   "",
		"one/config.json":                                                 "{}",
		"one/.krater_cache/x":                                             "",
		"hub/models--acme--big--moe/refs/main":                            "r2\n",
		"hub/models--acme--big--moe/snapshots/r1/config.json":             "{}",
		"hub/models--acme--big--moe/snapshots/r1/model.safetensors":       "",
		"hub/models--acme--big--moe/snapshots/r2/config.json":             "{}",
		"hub/models--acme--big--moe/snapshots/r2/model.safetensors":       "",
		"hub/models--acme--half/snapshots/r/config.json":                  "{}",
		"hub/models--acme--sly/refs/main":                                 "../../../../models/a",
		"hub/datasets--acme--text/snapshots/r/config.json":                "{}",
		"hub/models--acme--g/snapshots/r/m-Q4_0.gguf":                     "",
		"hub/models--acme--g/snapshots/r/m-Q8_0.gguf":                     "",
		"hub/models--acme--single/snapshots/r/m-Q8_0-00001-of-00001.gguf": "",
	})
	in := func(path string) string { return filepath.Join(root, path) }
	got := Find([]string{in("models"), in("one"), in("none"), in("one")}, in("hub"))
	want := []Found{
		{"z", in("models/z.gguf")}, {"a", in("models/a")}, {"x-Q4_0", in("models/g/x-Q4_0.gguf")}, {"one", in("one")},
		{"acme/big--moe", in("hub/models--acme--big--moe/snapshots/r2")},
		{"acme/g:Q4_0", in("hub/models--acme--g/snapshots/r/m-Q4_0.gguf")}, {"acme/g:Q8_0", in("hub/models--acme--g/snapshots/r/m-Q8_0.gguf")},
		{"acme/single", in("hub/models--acme--single/snapshots/r/m-Q8_0-00001-of-00001.gguf")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Find(nil, ""); got != nil {
		t.Errorf("%v", got)
	}
	if got := Find([]string{in("hub/models--acme--big--moe/snapshots/r1")}, ""); len(got) != 1 || got[0].Name != "acme/big--moe" {
		t.Errorf("%v", got)
	}
}
