package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"krater/cmd/krater/cmdline"
)

// TestFlagsOfOtherServers: each is answered with what stands for it here, not with a flag that is spelled alike.
func TestFlagsOfOtherServers(t *testing.T) {
	for line, want := range map[string]string{
		"serve --host 0.0.0.0":                "unknown flag --host: use --listen 0.0.0.0:8080 (see krater serve --help)",
		"serve --host":                        "unknown flag --host: use --listen HOST:8080",
		"serve --port 9000":                   "unknown flag --port: use --listen 127.0.0.1:9000",
		"serve --port=9000":                   "unknown flag --port: use --listen 127.0.0.1:9000",
		"serve --port --host x":               "unknown flag --port: use --listen 127.0.0.1:PORT",
		"run --port 9000 hi":                  "unknown flag --port: use --listen 127.0.0.1:9000",
		"serve -m /models/x":                  "unknown flag -m: use --model DIR",
		"serve -c 4096":                       "unknown flag -c: every model is served with its full context; --kv-cache SIZE",
		"serve --ctx-size 4096":               "--kv-cache SIZE",
		"serve --max-model-len 4096":          "--kv-cache SIZE",
		"serve -ngl 99":                       "unknown flag -ngl: with --device cuda all layers are on the GPU",
		"serve --n-gpu-layers=99":             "unknown flag --n-gpu-layers: with --device cuda",
		"serve -t 8":                          "unknown flag -t: use --threads 8",
		"serve --tensor-parallel-size 2":      "--device cuda --gpu N",
		"serve -tp 2":                         "unknown flag -tp: Krater uses one GPU",
		"serve --gpu-memory-utilization .9":   "use --vram SIZE",
		"serve --api-key-file keys":           "use --api-keys FILE",
		"serve --api-key secret":              "use --api-keys FILE (krater serve)",
		"serve --temperature 0":               "unknown flag --temperature: it belongs to krater run, krater chat",
		"setup acme/none":                     "krater: acme/none: there is no such folder, and in the cache CACHE it is not there. Download it with: krater pull acme/none (see krater setup --help)",
		"serve -v":                            "--log-level debug",
		"run --temp 0 hi":                     "use --temperature 0",
		"run -n 20 hi":                        "use --max-tokens 20",
		"run --n-predict 20 hi":               "use --max-tokens 20",
		"serve --kv-cache-dtype fp8":          "use --kv-dtype",
		"serve --max-num-seqs 4":              "use --max-seqs 4",
		"run --served-model-name x hi":        "unknown flag --served-model-name: it belongs to krater serve",
		"run --listen 127.0.0.1:1 hi":         "unknown flag --listen: it belongs to krater setup, krater launch, krater serve",
		"serve --modle x":                     `did you mean "--model"?`,
		"serve --spam -- --host":              "unknown flag --spam",
		"download llama3":                     "there is no command download: krater pull ORG/MODEL downloads a model",
		"list":                                "there is no command list: krater models lists",
		"serve -hf acme/tiny:Q4_0":            "krater pull acme/tiny:Q4_0 downloads it, then use --model acme/tiny:Q4_0",
		"trace pull":                          "there is no command pull (see krater trace --help)",
		"serve deepseek-ai/DeepSeek-V2-Lite":  "unexpected argument deepseek-ai/DeepSeek-V2-Lite: a model is named with --model (see",
		"serve --model deepseek-ai/DeepSeek3": "--model: deepseek-ai/DeepSeek3: there is no such folder, and in the cache CACHE it is not there. Download it with: krater pull deepseek-ai/DeepSeek3 (see krater serve --help)",
		"serve --model llama3":                "--model: llama3: no such file or folder; krater models lists the models that are here, and krater pull ORG/MODEL downloads one",
		"run --model ./nothing hi":            "--model: ./nothing: no such file or folder; krater models",
		"serve --model acme/x:Q4_0@v1":        "Download it with: krater pull acme/x:Q4_0@v1",
	} {
		cache := t.TempDir()
		t.Setenv("HF_HUB_CACHE", cache)
		want = strings.Replace(want, "CACHE", cache, 1)
		t.Setenv("COLUMNS", "100")
		o := krater(t, "", strings.Fields(line)...)
		if o.status != 2 || !strings.Contains(o.err, "krater: ") || !strings.Contains(o.err, want) {
			t.Errorf("krater %s: status %d, got %q, want %q", line, o.status, o.err, want)
		}
	}
	if got := cmdline.UnknownVariables(cmdline.All(&cli{}), []string{"KRATER_MAX_MODEL_LEN=1"}); len(got) != 1 || !strings.Contains(got[0], "as a flag: every model is served with its full context") {
		t.Errorf("in the environment: %q", got)
	}
	if o := krater(t, "", "serve", "--config", write(t, "k.yaml", "port: 9000\nspam: 1\n")); !strings.Contains(o.err, "port (use --listen 127.0.0.1:PORT), spam") {
		t.Errorf("in a file: %s", o.err)
	}
}

// TestModelsByName: the cache's snapshot takes the place of ORG/MODEL, and what is no model is told.
func TestModelsByName(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	snapshot := filepath.Join(cache, "models--acme--tiny", "snapshots", "1")
	if err := os.MkdirAll(filepath.Dir(snapshot), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(snapshot, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"acme/tiny", "Acme/tiny@1", filepath.Join(cache, "models--acme--tiny"), snapshot} {
		o := krater(t, "", "doctor", "--json", "--model", word)
		if o.status != 0 || !strings.Contains(o.out, `"model": "acme/tiny"`) {
			t.Errorf("%s: %d %q %q", word, o.status, o.out, o.err)
		}
	}
	if o := krater(t, "", "serve", "--model", "acme/tiny", "--print-config"); !strings.Contains(o.out, "model: "+snapshot+" ") {
		t.Errorf("%q", o.out)
	}
	if err := os.Remove(filepath.Join(snapshot, "config.json")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"acme/tiny":                "its download has not ended",
		write(t, "x.bin", "G"):     "it is a file: name the model's folder",
		filepath.Join(cache, "no"): "no such file or folder; krater models",
	} {
		refuses(t, 2, []string{"serve", "--model", path}, "--model: "+path+": ", want)
	}
	refuses(t, 1, []string{"tokenize", "--model", write(t, "x.gguf", "G")}, "x.gguf: not a GGUF file")
}

// TestForeignFlagsNameOurs: what is recommended is there, and no flag of ours is in the table.
func TestForeignFlagsNameOurs(t *testing.T) {
	flags, commands := map[string]bool{}, map[string]bool{}
	for _, c := range cmdline.Completions(cmdline.All(&cli{}).Node) {
		commands[c.Path] = true
		for _, f := range c.Flags {
			if flags[f.Name] = true; cmdline.Negatable(f) {
				flags["no-"+f.Name] = true
			}
			if c.Path == "serve" && cmdline.ForeignFlags[f.Name] != "" {
				t.Errorf("--%s is a flag of krater serve", f.Name)
			}
		}
	}
	flag, command := regexp.MustCompile(`--([a-z][\w-]*)`), regexp.MustCompile(`krater ([a-z]+)`)
	for _, table := range []map[string]string{cmdline.ForeignFlags, cmdline.ForeignCommands} {
		for name, text := range table {
			for _, m := range flag.FindAllStringSubmatch(text, -1) {
				if !flags[m[1]] {
					t.Errorf("%s: there is no --%s", name, m[1])
				}
			}
			for _, m := range command.FindAllStringSubmatch(text, -1) {
				if !commands[m[1]] {
					t.Errorf("%s: there is no krater %s", name, m[1])
				}
			}
			if commands[name] && text == cmdline.ForeignCommands[name] {
				t.Errorf("krater %s is a command", name)
			}
		}
	}
}
