package hub

import (
	"encoding/json/v2"
	"slices"
	"strings"
	"testing"

	"krater/stages/source/hubcache"
)

// TestChoose: which files are pulled, and why others are not.
func TestChoose(t *testing.T) {
	tensors := []string{"config.json", "a.safetensors", "original/b.safetensors", "consolidated.safetensors", "x.md", "pytorch_model.bin", "chat_template.jinja"}
	quants := []string{
		"config.json", "README.md", "M-Q4_K_M.gguf", "M-Q4_K_S.gguf", "mmproj-M-F16.gguf", "UD-Q4_K_XL/M-UD-Q4_K_XL-00001-of-00002.gguf",
		"UD-Q4_K_XL/M-UD-Q4_K_XL-00002-of-00002.gguf", "Q2_K/M-Q2_K-00001-of-00002.gguf", "BF16/M-BF16.gguf",
	}
	for _, x := range []struct {
		names   []string
		word    string
		include string
		want    string // names with blanks, or a part of the error
	}{
		{tensors, "a/m", "", "config.json a.safetensors consolidated.safetensors chat_template.jinja"},
		{append(tensors, "model.safetensors.index.json"), "a/m", "", "config.json a.safetensors chat_template.jinja model.safetensors.index.json"},
		{tensors, "a/m", "*.safetensors,x.*", "a.safetensors original/b.safetensors consolidated.safetensors x.md"},
		{tensors, "a/m", "origina?/*", "original/b.safetensors"},
		{tensors, "a/m", "*.bin", "pytorch_model.bin is a pickle"},
		{tensors, "a/m", "pytorch_model.bin", "pytorch_model.bin"},
		{tensors, "a/m", "p*,config.json", "pytorch_model.bin is a pickle"},
		{tensors, "a/m", "[a].safetensors", "the model has no such file"},
		{tensors, "a/m", "\xff", "--include"},
		{[]string{"config.json", "pytorch_model.bin"}, "a/m", "", "pickles (pytorch_model.bin)"},
		{[]string{"config.json"}, "a/m", "", "no safetensors and no GGUF"},
		{quants, "a/m", "", "name one behind a colon, such as krater pull a/m:BF16; there are BF16, Q2_K, Q4_K_M, Q4_K_S, UD-Q4_K_XL"},
		{quants, "a/m:q4_k_m", "", "M-Q4_K_M.gguf"},
		{quants, "a/m:Q4_K_XL", "", "UD-Q4_K_XL/M-UD-Q4_K_XL-00001-of-00002.gguf UD-Q4_K_XL/M-UD-Q4_K_XL-00002-of-00002.gguf"},
		{quants, "a/m:BF16", "README.md", "README.md BF16/M-BF16.gguf"},
		{quants, "a/m:Q2_K", "", "of Q2_K/M-Q2_K there are 1 of 2 parts"},
		{quants, "a/m:Q4", "", "no .gguf file is Q4; there are BF16"},
		{tensors, "a/m:Q4", "", "there are no .gguf files"},
	} {
		var all []File
		for _, name := range x.names {
			all = append(all, File{Path: name})
		}
		ref, err := hubcache.Parse(x.word)
		if err != nil {
			t.Fatal(err)
		}
		var include []string
		if x.include != "" {
			include = strings.Split(x.include, ",")
		}
		chosen, err := choose(all, ref, include)
		switch {
		case err != nil && !strings.Contains(err.Error(), x.want):
			t.Errorf("%s %s: %v, want %q", x.word, x.include, err, x.want)
		case err == nil:
			want := strings.Fields(x.want)
			got := pathsOf(chosen)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s %s: %q, want %q", x.word, x.include, got, want)
			}
		}
	}
}

// entry is a line of a hub's list.
func entry(name, size, hash string) string {
	return `{"rfilename":` + name + `,"size":` + size + `,"blobId":"` + hash + `"}`
}

// TestParseRevision: what would leave the folder, or has no sane size or hash, is refused by name.
func TestParseRevision(t *testing.T) {
	list := func(entries ...string) string {
		return `{"sha":"` + commit + `","siblings":[` + strings.Join(entries, ",") + `],"more":{"a":1}}`
	}
	good := entry(`"a/b.json"`, "5", commit)
	for text, want := range map[string]string{
		list(good): "",
		list(good, `{"rfilename":"w","size":1,"blobId":"x","lfs":{"sha256":"`+strings.Repeat("a", 64)+`","size":7}}`): "",
		list(entry(`"../x"`, "5", commit)):                              `names a file "../x"`,
		list(entry(`"a/../../x"`, "5", commit)):                         `names a file`,
		list(entry(`"/etc/passwd"`, "5", commit)):                       `names a file "/etc/passwd"`,
		list(entry(`""`, "5", commit)):                                  `names a file ""`,
		list(entry(`"."`, "5", commit)):                                 `names a file "."`,
		list(entry(`"a//b"`, "5", commit)):                              `names a file`,
		list(entry(`"a\\b"`, "5", commit)):                              `names a file`,
		list(entry(`"a\u001b[31m"`, "5", commit)):                       `names a file`,
		list(entry(`"`+strings.Repeat("x", 256)+`"`, "5", commit)):      `names a file`,
		list(good, good):                                                `names "a/b.json" twice`,
		list(entry(`"x"`, "-1", commit)):                                `"x" has -1 bytes`,
		list(entry(`"x"`, "9000000000000000", commit)):                  `"x" has 9000000000000000 bytes`,
		list(entry(`"x"`, "null", commit)):                              `how large "x" is`,
		list(entry(`"x"`, "5", "")):                                     `no hash of "x"`,
		list(entry(`"x"`, "5", "../../../../home")):                     `no hash of "x"`,
		list(`{"rfilename":"w","size":1,"lfs":{"sha256":"","size":7}}`): `no hash of "w"`,
		`{"sha":"main","siblings":[]}`:                                  `names no commit: "main"`,
		`[]`:                                                            "cannot be read",
		list(good) + "x":                                                "cannot be read",
	} {
		r, err := parseRevision([]byte(text))
		if want == "" {
			if err != nil || r.commit != commit || r.files[0] != (File{Path: "a/b.json", Size: 5, SHA1: commit}) {
				t.Errorf("%s: %+v, %v", text, r, err)
			} else if len(r.files) == 2 && r.files[1] != (File{Path: "w", Size: 7, SHA256: strings.Repeat("a", 64)}) {
				t.Errorf("%+v", r.files[1])
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	var many []string
	for range 5 {
		many = append(many, entry(`"x`+string(rune('a'+len(many)))+`"`, "17000000000000", commit))
	}
	if _, err := parseRevision([]byte(list(many...))); err == nil {
		t.Error("a model of 85 TB is accepted")
	}
}

// FuzzParseRevision: whatever the hub says, names stay in the folder, and what is read can be chosen from.
func FuzzParseRevision(f *testing.F) {
	f.Add([]byte(`{"sha":"`+commit+`","siblings":[`+entry(`"a-Q4_K_M.gguf"`, "5", commit)+`,`+entry(`"b-00001-of-00002.gguf"`, "5", commit)+`]}`), "Q4")
	f.Add([]byte(`{"sha":"`+commit+`","siblings":[`+entry(`"../a"`, "5", commit)+`]}`), "")
	f.Fuzz(func(t *testing.T, data []byte, pattern string) {
		r, err := parseRevision(data)
		if err != nil {
			return
		}
		for _, file := range r.files {
			if checkPath(file.Path) != nil || file.Size < 0 || len(file.id()) < 40 || strings.Trim(file.id(), "0123456789abcdef") != "" {
				t.Errorf("%+v", file)
			}
		}
		for _, include := range [][]string{nil, {pattern}} {
			chosen, err := choose(r.files, hubcache.Ref{Repo: "a/b", Quant: pattern}, include)
			if err == nil && len(chosen) == 0 {
				t.Error("nothing is chosen, without an error")
			}
		}
		if _, err := json.Marshal(r.files); err != nil {
			t.Error(err)
		}
	})
}
