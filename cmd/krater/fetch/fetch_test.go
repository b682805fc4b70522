package fetch

import (
	"bytes"
	"crypto/sha1"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"krater/cmd/krater/console"
	"krater/kernels/machine"
	"krater/stages/weights/gguf"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// env returns the environment of a command on a machine with that much memory, and an empty cache.
func env(t *testing.T, memory int64) (e *console.Env, out, err *bytes.Buffer, cache string) {
	cache = t.TempDir()
	for name, value := range map[string]string{"HF_HUB_CACHE": cache, "HF_TOKEN": "", "HF_HOME": t.TempDir(), "HF_TOKEN_PATH": "", "HUGGING_FACE_HUB_TOKEN": ""} {
		t.Setenv(name, value)
	}
	out, err = &bytes.Buffer{}, &bytes.Buffer{}
	m := *machine.Here()
	m.Memory.Total, m.Memory.Available, m.Limits = memory, memory, machine.Limits{}
	return &console.Env{Out: out, Err: err, Machine: func() *machine.Machine { return &m }}, out, err, cache
}

// hubOf serves small files as a model. A request for a name that is not in files calls missing.
func hubOf(t *testing.T, files map[string]string, missing func(r *http.Request)) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/models/acme/tiny/revision/") {
			var list []string
			for name, data := range files {
				list = append(list, fmt.Sprintf(`{"rfilename":%q,"size":%d,"blobId":"%x"}`, name, len(data), sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data))))
			}
			fmt.Fprintf(w, `{"sha":%q,"siblings":[%s]}`, commit, strings.Join(list, ","))
			return
		}
		if missing != nil {
			missing(r)
		}
		fmt.Fprint(w, files[strings.TrimPrefix(r.URL.Path, "/acme/tiny/resolve/"+commit+"/")])
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestPull: the path goes to standard output, all else to standard error.
func TestPull(t *testing.T) {
	e, out, told, cache := env(t, 1<<40)
	url := hubOf(t, map[string]string{"config.json": "{}", "model.safetensors": "weights", "m-Q4_0.gguf": "blocks"}, nil)
	for word, want := range map[string]string{"acme/tiny": "", "acme/tiny:q4_0": "/m-Q4_0.gguf"} {
		out.Reset()
		told.Reset()
		c := PullCmd{Model: word, Hub: url, Downloads: 2}
		if err := c.Run(e); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != filepath.Join(cache, "models--acme--tiny/snapshots", commit)+want+"\n" {
			t.Errorf("%s: %q", word, got)
		}
		if !strings.Contains(told.String(), "Use it with --model "+word) {
			t.Errorf("%s: %q", word, told)
		}
	}
	t.Setenv("HF_ENDPOINT", url)
	for word, want := range map[string]string{
		"llama3": "ORG/MODEL", "acme/tiny:Q8_0": "no .gguf file is Q8_0; there are Q4_0", "acme/other": "has no model acme/other",
	} {
		c := PullCmd{Model: word, Downloads: 1}
		if word == "acme/other" {
			c.Hub = hubOf(t, nil, nil) + "/none"
			want = ""
		}
		if err := c.Run(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", word, err)
		}
	}
	for _, c := range []PullCmd{{Model: "acme/tiny"}, {Model: "acme/tiny", Downloads: 1000}, {Model: "acme/tiny", Downloads: 1, Hub: "huggingface.co"}} {
		if err := c.Run(e); err == nil {
			t.Errorf("%+v runs", c)
		}
	}
}

// TestPullIsStopped: Ctrl-C ends it with the usual status.
func TestPullIsStopped(t *testing.T) {
	e, out, told, _ := env(t, 1<<40)
	url := hubOf(t, map[string]string{"config.json": "{}", "model.safetensors": "weights"}, func(r *http.Request) {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	})
	c := PullCmd{Model: "acme/tiny", Hub: url, Downloads: 1}
	var status console.ExitError
	if err := c.Run(e); !errors.As(err, &status) || status != 130 || out.Len() > 0 || !strings.Contains(told.String(), "goes on from here") {
		t.Errorf("%v %q %q", err, out, told)
	}
}

// TestModels: family, precision and size of what is here, and whether it fits, or why that is not known.
func TestModels(t *testing.T) {
	folder := t.TempDir()
	put := func(path string, data string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	if err := gguf.Write(&file, []gguf.Pair{{Key: "general.architecture", Value: "llama"}, {Key: "general.file_type", Value: uint32(15)}}, nil); err != nil {
		t.Fatal(err)
	}
	put(filepath.Join(folder, "a", "l-Q4_K_M.gguf"), file.String())
	put(filepath.Join(folder, "b.gguf"), "no model")
	put(filepath.Join(folder, "c", "config.json"), `{"model_type":"acme_vl","text_config":{"model_type":"acme","dtype":"float16","quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}}`)
	put(filepath.Join(folder, "c", "model.safetensors"), "12345")
	put(filepath.Join(folder, "d", "config.json"), `{]`)
	put(filepath.Join(folder, "d", "model.safetensors"), "")
	for memory, fits := range map[int64]string{1 << 40: "true", 1 << 20: "false"} {
		e, out, _, cache := env(t, memory)
		snapshot := filepath.Join(cache, "models--acme--tiny", "snapshots", "1")
		if err := os.MkdirAll(filepath.Dir(snapshot), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(snapshot, os.DirFS("../../../models/krater-tiny")); err != nil {
			t.Fatal(err)
		}
		if err := (&ModelsCmd{Folders: []string{folder}, JSON: true}).Run(e); err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err := json.Unmarshal(out.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range list {
			got = append(got, fmt.Sprint(m["name"], " ", m["family"], " ", m["precision"], " ", m["bytes"], " ", m["fits"], " ", m["note"]))
		}
		want := []string{
			`b <nil> <nil> 8 <nil> not a GGUF file`, "l-Q4_K_M llama Q4_K_M " + fmt.Sprint(file.Len()) + " <nil> llama.embedding_length: metadata key missing", "c acme_vl FP8 128x128 blocks 5 <nil> ",
			"d <nil> <nil> 0 <nil> config.json: ", "acme/tiny deepseek_v2 bfloat16 ",
		}
		if len(got) != len(want) {
			t.Fatalf("%q", got)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) || strings.HasSuffix(got[i], "<nil>") != (i == 4) {
				t.Errorf("%q, want %q", got[i], want[i])
			}
		}
		if !strings.HasSuffix(got[4], " "+fits+" <nil>") || list[4]["path"] != snapshot {
			t.Errorf("%q of %d bytes, want %s", list[4], memory, fits)
		}
		out.Reset()
		if err := (&ModelsCmd{}).Run(e); err != nil || !strings.Contains(out.String(), "acme/tiny") || strings.Count(out.String(), "\n") != 2 {
			t.Errorf("%q, %v", out, err)
		}
	}
	e, out, told, _ := env(t, 1<<40)
	if err := (&ModelsCmd{}).Run(e); err != nil || out.Len() > 0 || !strings.Contains(told.String(), "krater pull ORG/MODEL downloads one") {
		t.Errorf("%q %q %v", out, told, err)
	}
}
