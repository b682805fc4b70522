package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

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
		"launch acme/none":                    "krater: acme/none: no such file or folder, and Krater does not download models: download it with hf download acme/none",
		"serve -v":                            "--log-level debug",
		"run --temp 0 hi":                     "use --temperature 0",
		"run -n 20 hi":                        "use --max-tokens 20",
		"run --n-predict 20 hi":               "use --max-tokens 20",
		"serve --kv-cache-dtype fp8":          "use --kv-dtype",
		"serve --max-num-seqs 4":              "use --max-seqs 4",
		"run --served-model-name x hi":        "unknown flag --served-model-name: it belongs to krater serve",
		"run --listen 127.0.0.1:1 hi":         "unknown flag --listen: it belongs to krater launch, krater serve",
		"serve --modle x":                     `did you mean "--model"?`,
		"serve --spam -- --host":              "unknown flag --spam",
		"pull llama3":                         "there is no command pull: Krater does not download models: name a model's folder with --model DIR; krater launch",
		"list":                                "there is no command list: krater launch shows",
		"trace pull":                          "there is no command pull (see krater trace --help)",
		"serve deepseek-ai/DeepSeek-V2-Lite":  "unexpected argument deepseek-ai/DeepSeek-V2-Lite: a model is named with --model DIR",
		"serve --model deepseek-ai/DeepSeek3": "--model: deepseek-ai/DeepSeek3: no such file or folder, and Krater does not download models: download it with hf download deepseek-ai/DeepSeek3, and name the folder that it prints; krater launch finds models (see krater serve --help)",
		"serve --model llama3":                "--model: llama3: no such file or folder, and Krater does not download models: download the model's safetensors with hf download",
		"run --model ./nothing hi":            "--model: nothing: no such file or folder, and Krater does not download models; krater launch finds models",
	} {
		t.Setenv("HF_HUB_CACHE", t.TempDir())
		t.Setenv("COLUMNS", "100")
		o := krater(t, "", strings.Fields(line)...)
		if o.status != 2 || !strings.Contains(o.err, "krater: ") || !strings.Contains(o.err, want) {
			t.Errorf("krater %s: status %d, got %q, want %q", line, o.status, o.err, want)
		}
	}
	var c cli
	ctx, _, err := cmdline.Parse(&c, []string{"version"})
	if err != nil {
		t.Fatal(err)
	}
	if got := cmdline.UnknownVariables(ctx.Model, []string{"KRATER_MAX_MODEL_LEN=1"}); len(got) != 1 || !strings.Contains(got[0], "as a flag: every model is served with its full context") {
		t.Errorf("in the environment: %q", got)
	}
	if o := krater(t, "", "serve", "--config", write(t, "k.yaml", "port: 9000\nspam: 1\n")); !strings.Contains(o.err, "port (use --listen 127.0.0.1:PORT), spam") {
		t.Errorf("in a file: %s", o.err)
	}
}

// TestModelsThatAreNotThere: what is a file, and what Hugging Face's cache has.
func TestModelsThatAreNotThere(t *testing.T) {
	hub := t.TempDir()
	t.Setenv("HF_HUB_CACHE", hub)
	snapshot := filepath.Join(hub, "models--acme--tiny", "snapshots", "1")
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "model.safetensors"} {
		if err := os.WriteFile(filepath.Join(snapshot, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"Acme/tiny":               "Hugging Face's cache has the model: --model " + snapshot,
		write(t, "x.gguf", "G"):   "GGUF files are not supported",
		write(t, "x.bin", "G"):    "it is a file: name the model's folder",
		filepath.Join(hub, "not"): "no such file or folder, and Krater does not download models; krater launch finds models",
	} {
		refuses(t, 2, []string{"serve", "--model", path}, "--model: "+path+": ", want)
	}
}

// TestForeignFlagsNameOurs: what is recommended is there, and no flag of ours is in the table.
func TestForeignFlagsNameOurs(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Name("krater"))
	if err != nil {
		t.Fatal(err)
	}
	flags, commands := map[string]bool{}, map[string]bool{}
	for _, c := range cmdline.Completions(parser.Model.Node) {
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
