package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"krater/actors/local/config"
	"krater/cmd/krater/batch"
	"krater/cmd/krater/benches"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/traces"
)

// write makes a file in a folder of the test.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// setting is a line of --print-config.
type setting struct{ value, source string }

// settings gives what serve would run with.
func settings(t testing.TB, args ...string) map[string]setting {
	t.Helper()
	return parseSettings(t, answers(t, "", append([]string{"serve", "--print-config"}, args...)...))
}

func parseSettings(t testing.TB, text string) map[string]setting {
	t.Helper()
	m := map[string]setting{}
	for line := range strings.Lines(text) {
		name, rest, ok1 := strings.Cut(line, ": ")
		value, source, ok2 := strings.Cut(rest, "  # ")
		if !ok1 || !ok2 {
			t.Fatalf("a line without value or source: %q", line)
		}
		m[name] = setting{strings.TrimSpace(value), strings.TrimSpace(source)}
	}
	return m
}

// TestPrecedence: flag, then environment, then file, then default.
func TestPrecedence(t *testing.T) {
	file := write(t, "krater.yaml", "max-seqs: 3\nkv-cache: 64MiB\nopen-metrics: true\n")
	for _, c := range []struct {
		name, file, env, flag string
		want                  setting
	}{
		{"default", "", "", "", setting{"32", "default"}},
		{"file", file, "", "", setting{"3", "file " + file}},
		{"environment", "", "4", "", setting{"4", "environment KRATER_MAX_SEQS"}},
		{"environment over file", file, "4", "", setting{"4", "environment KRATER_MAX_SEQS"}},
		{"flag", "", "", "5", setting{"5", "flag --max-seqs"}},
		{"flag over all", file, "4", "5", setting{"5", "flag --max-seqs"}},
		{"flag that repeats the file", file, "", "3", setting{"3", "flag --max-seqs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var args []string
			if c.file != "" {
				args = append(args, "--config", c.file)
			}
			if c.env != "" {
				t.Setenv("KRATER_MAX_SEQS", c.env)
			}
			if c.flag != "" {
				args = append(args, "--max-seqs", c.flag)
			}
			if got := settings(t, args...)["max-seqs"]; got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	t.Run("file named by the environment", func(t *testing.T) {
		t.Setenv("KRATER_CONFIG", file)
		got := settings(t)
		if got["kv-cache"] != (setting{"64MiB", "file " + file}) || got["open-metrics"] != (setting{"true", "file " + file}) {
			t.Errorf("%v", got)
		}
	})
}

// TestPrintConfigIsAConfig: what it prints gives the same values from a file.
func TestPrintConfigIsAConfig(t *testing.T) {
	keys := write(t, "keys", "12345678\n")
	for name, args := range map[string][]string{
		"defaults": nil,
		"every kind": {
			"--model", modelDir, "--origins", "https://a.example,https://b.example", "--kv-cache", "1.5GiB", "--drain-timeout", "1m30s",
			"--open-metrics", "--served-model-name", "a # b: 'c'", "--api-keys", keys, "--inline-below=-1ms", "--listen", "[::1]:0",
		},
		"a list of one": {"--origins", "*"},
	} {
		t.Run(name, func(t *testing.T) {
			text := answers(t, "", append([]string{"serve", "--print-config"}, args...)...)
			again := answers(t, "", "serve", "--print-config", "--config", write(t, "again.yaml", text))
			first, second := parseSettings(t, text), parseSettings(t, again)
			if len(first) < 20 || len(first) != len(second) {
				t.Fatalf("%d settings, then %d", len(first), len(second))
			}
			for name, s := range first {
				if got := second[name]; got.value != s.value {
					t.Errorf("%s: %s became %s", name, s.value, got.value)
				}
			}
		})
	}
}

// TestSwitchesAreParsed: 0 and false in the environment mean off, and
// what is neither is refused.
func TestSwitchesAreParsed(t *testing.T) {
	switches, values := 0, map[string]string{"0": "false", "false": "false", "no": "false", "1": "true", "true": "true", "yes": "true"}
	if testing.Short() { // one parser reads all of them
		values = map[string]string{"no": "false", "1": "true"}
	}
	eachFlag(t, func(command string, f *kong.Flag) {
		if command != "serve" || !f.IsBool() || f.Name == "help" || f.Name == "print-config" {
			return
		}
		switches++
		for value, want := range values {
			t.Setenv(cmdline.EnvName(f.Name), value)
			got := settings(t)[f.Name]
			if got != (setting{want, "environment " + cmdline.EnvName(f.Name)}) {
				t.Errorf("%s=%s gives %v", cmdline.EnvName(f.Name), value, got)
			}
			file := write(t, "switch.yaml", fmt.Sprintf("%s: %q\n", f.Name, value))
			if got := settings(t, "--config", file)[f.Name].value; got != want {
				t.Errorf("beside a file: %s", got)
			}
		}
		t.Setenv(cmdline.EnvName(f.Name), "banana")
		refuses(t, 2, []string{"serve", "--print-config"}, "--"+f.Name, "banana", cmdline.EnvName(f.Name))
		os.Unsetenv(cmdline.EnvName(f.Name))
		refuses(t, 2, []string{"serve", "--print-config", "--config", write(t, "bad.yaml", f.Name+": banana\n")}, "--"+f.Name, "banana")
	})
	if switches == 0 {
		t.Error("no switch was tried")
	}
}

// TestBadConfigFiles: each is refused with its name and the fault.
func TestBadConfigFiles(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"unknown key":        {"max-sequences: 3\n", []string{"unknown settings: max-sequences"}},
		"several":            {"zeta: 1\nalpha: 2\nmax-seqs: 3\n", []string{"unknown settings: alpha, zeta"}},
		"not a setting":      {"print-config: true\n", []string{"unknown settings: print-config"}},
		"a file in a file":   {"config: other.yaml\n", []string{"unknown settings: config"}},
		"a mapping":          {"max-seqs: {a: 1}\n", []string{"max-seqs", "plain value"}},
		"nothing":            {"max-seqs:\n", []string{"max-seqs", "plain value"}},
		"wrong type":         {"max-seqs: many\n", []string{"--max-seqs", "many"}},
		"a list for a value": {"max-seqs: [1, 2]\n", []string{"--max-seqs"}},
		"wrong enum":         {"kv-dtype: f16\n", []string{"--kv-dtype", "bf16"}},
		"a bad size":         {"kv-cache: banana\n", []string{"--kv-cache", "banana"}},
		"a bad duration":     {"drain-timeout: 5 apples\n", []string{"--drain-timeout"}},
		"twice":              {"max-seqs: 1\nmax-seqs: 2\n", []string{"max-seqs"}},
		"no YAML":            {"max-seqs: [1\n", []string{"configuration"}},
		"no mapping":         {"- max-seqs\n", []string{"configuration"}},
		"zeros":              {strings.Repeat("\x00", 64), []string{"configuration"}},
		"too long":           {strings.Repeat("#", cmdline.ConfigMaxBytes+1), []string{"over", "bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, "bad.yaml", c.text)
			words := c.words
			if strings.Contains(words[0], "unknown") || words[0] == "configuration" {
				words = append(words, file)
			}
			refuses(t, 2, []string{"serve", "--print-config", "--config", file}, words...)
		})
	}
	missing := filepath.Join(t.TempDir(), "none.yaml")
	refuses(t, 2, []string{"serve", "--print-config", "--config=" + missing}, missing)
	refuses(t, 2, []string{"serve", "--print-config", "--config", t.TempDir()}, "directory")
	if got := settings(t, "--config", write(t, "empty.yaml", "# nothing\n"))["max-seqs"]; got.value != "32" {
		t.Errorf("an empty file: %v", got)
	}
}

// TestBadFlags: misuse is told with the flag's name; exit status 2 where the
// command line itself is wrong.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		status int
		line   string
		words  string
	}{
		{2, "serv", "there is no command serv; did you mean \"serve\"? (see krater --help)"},
		{2, "trace shew", "there is no command shew (see krater trace --help)"},
		{2, "help serv", "there is no command serv"},
		{2, "run --nonsense hi", "--nonsense (see krater run --help)"},
		{2, "bench model --nonsense", "--nonsense (see krater bench model --help)"},
		{2, "run --threads few hi", "--threads"},
		{2, "run --kv-cache banana hi", "--kv-cache banana MiB"},
		{2, "run --kv-cache=-5 hi", "--kv-cache"},
		{2, "run --device gpu hi", "--device cpu gpu"},
		{2, "run --model /nowhere hi", "--model: /nowhere: no such file"},
		{2, "run --file /nowhere", "--file /nowhere"},
		{2, "ppl", "--text"},
		{2, "run one two", "two"},
		{2, "serve --log-level loud", "--log-level loud"},
		{1, "run", "question"},
		{1, "run --file " + modelDir + "/heldout.txt hi", "--file"},
		{1, "run --max-tokens=-1 hi", "--max-tokens"},
		{1, "run --temperature=-1 hi", "temperature"},
		{1, "run --top-p 2 hi", "top_p"},
		{1, "run --threads=-1 hi", "--threads"},
		{1, "run --layer-groups 0 hi", "--layer-groups"},
		{1, "run --layer-groups 8 hi", "--layer-groups 7"},
		{1, "run --expert-pools=-1 hi", "--expert-pools"},
		{1, "run --micro-batches 65 hi", "--micro-batches 64"},
		{1, "run --block-tokens 0 hi", "--block-tokens"},
		{1, "run --prefill-chunk=-1 hi", "--prefill-chunk"},
		{1, "run --prefill-share 0 hi", "--prefill-share"},
		{1, "run --kv-cache 1B hi", "--kv-cache"},
		{1, "serve --max-seqs 0 --listen 127.0.0.1:0", "--max-seqs"},
		{1, "serve --max-queue 0 --listen 127.0.0.1:0", "--max-queue"},
		{1, "serve --max-sockets 0 --listen 127.0.0.1:0", "--max-sockets"},
		{1, "serve --max-connections 70000 --listen 127.0.0.1:0", "--max-connections"},
		{1, "serve --max-concurrent 0 --listen 127.0.0.1:0", "--max-concurrent"},
		{1, "serve --max-seqs 8 --max-batch-tokens 4 --listen 127.0.0.1:0", "--max-batch-tokens --max-seqs"},
		{1, "serve --listen nonsense", "--listen"},
		{1, "serve --listen 127.0.0.1:99999", "--listen"},
		{1, "ppl --text " + modelDir + "/heldout.txt --window 1", "--window"},
		{1, "ppl --text " + modelDir + "/heldout.txt --window 4096", "--window 2048"},
		{1, "bench --rounds 0", "--rounds"},
		{1, "bench kernels --threads=-1", "--threads"},
		{1, "bench kernels --seconds 0", "--seconds"},
		{1, "bench kernels --rows 0", "--rows"},
		{1, "bench model --decode 1", "--decode"},
		{1, "bench model --batch 0", "--batch"},
		{1, "bench model --layers 3", "--layers --shape"},
		{1, "bench model --shape deepseek-v2-lite --model " + modelDir, "--model --shape"},
		{1, "bench model --layer-groups 2", "--layer-groups"},
		{1, "bench kernels --plot kernels.gif", ".svg .png"},
		{1, "bench kernels --size 900TB", "--size available"},
		{1, "compare", "--golden"},
		{1, "doctor --model .", "config.json /cmd/krater tokenizer.json"},
	} {
		t.Run(c.line, func(t *testing.T) {
			refuses(t, c.status, strings.Fields(c.line), strings.Fields(c.words)...)
		})
	}
}

// eachFlag visits every flag of every command.
func eachFlag(t *testing.T, f func(command string, flag *kong.Flag)) {
	t.Helper()
	var visit func(prefix string, commands []*kong.Node)
	visit = func(prefix string, commands []*kong.Node) {
		for _, command := range commands {
			for _, flag := range command.Flags {
				f(prefix+command.Name, flag)
			}
			visit(prefix+command.Name+" ", command.Children)
		}
	}
	visit("", cmdline.All(&cli{}).Children)
}

// TestHelp: every command and flag says what it is for.
func TestHelp(t *testing.T) {
	top := execute(t, "", "--help")
	none := execute(t, "")
	if top.status != 0 || none.status != 0 || top.out != none.out {
		t.Errorf("--help gives %d, nothing at all gives %d\n%s\n%s", top.status, none.status, top.out, none.out)
	}
	texts := map[string]string{}
	eachFlag(t, func(command string, f *kong.Flag) {
		if texts[command] == "" {
			o := execute(t, "", append(strings.Fields(command), "--help")...)
			if o.status != 0 || !strings.Contains(top.out, "\n  "+command+" ") {
				t.Errorf("%s --help: status %d; in the list of commands: %v", command, o.status, strings.Contains(top.out, command))
			}
			texts[command] = o.out
		}
		if f.Help == "" || !strings.Contains(texts[command], "--"+f.Name) && !strings.Contains(texts[command], "--[no-]"+f.Name) {
			t.Errorf("krater %s --help says nothing of --%s", command, f.Name)
		}
	})
	// The configuration file is no command, completion and help have no flags, and bench, batch and trace are several.
	want := reflect.TypeFor[cli]().NumField() - 3 + reflect.TypeFor[benches.Cmd]().NumField() - 1 + reflect.TypeFor[batch.Cmd]().NumField() - 1 + reflect.TypeFor[traces.Cmd]().NumField() - 1
	if len(texts) != want {
		t.Errorf("%d commands have flags, want %d", len(texts), want)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]config.Size{
		"0": 0, "4096B": 4096, "100000": 100000, "512MiB": 512 << 20, "1.5G": 3 << 29, "16GB": 16e9, " 2 kib ": 2048, "1tb": 1e12, "7b": 7,
	} {
		var s config.Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: %d %v", text, s, err)
		}
		again, err := s.MarshalText()
		var back config.Size
		if err != nil || back.UnmarshalText(again) != nil || back != s {
			t.Errorf("%q became %s", text, again)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1e30", "nan", "inf", "12 parsecs", "0x10"} {
		var s config.Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, s)
		}
	}
	// Who writes a small number without a unit does not mean bytes: every flag of a size says so.
	for text, words := range map[string]string{"16": "16 bytes: did you mean 16GiB?", "1.5": "1.5 bytes: did you mean 1.5GiB?", "16384": "16384 bytes: did you mean 16384MiB?"} {
		for _, flag := range []string{"plan --vram", "plan --ram", "serve --kv-cache", "serve --batch-store", "run --kv-ram", "bench strategies --budgets", "bench kernels --size", "doctor --expert-vram"} {
			refuses(t, 2, append(strings.Fields(flag), text), words)
		}
		t.Setenv("KRATER_VRAM", text)
		refuses(t, 2, []string{"plan"}, words)
		os.Unsetenv("KRATER_VRAM")
	}
}
