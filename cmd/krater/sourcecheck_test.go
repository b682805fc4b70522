package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pointer returns the text that git checks out in place of a large file without git-lfs.
func pointer([]byte) []byte {
	return []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 14149960\n")
}

// TestFaultyFolders: every command that takes a model refuses a folder that is not whole, by its
// small files and the headers of its weights. Nothing is left behind.
func TestFaultyFolders(t *testing.T) {
	type edits = map[string]func([]byte) []byte
	change := func(old, new string) func([]byte) []byte {
		return func(d []byte) []byte { return bytes.Replace(d, []byte(old), []byte(new), 1) }
	}
	const shard = "model-00002-of-00003.safetensors"
	link := func(dir, name, to string) {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string]struct {
		edits edits
		more  func(dir string)
		words string
	}{
		"pointer for a shard":       {edits{shard: pointer}, nil, shard + " git-lfs 14149960 pull"},
		"pointer for a tokenizer":   {edits{"tokenizer.json": pointer}, nil, "tokenizer.json git-lfs"},
		"pointer for its config":    {edits{"tokenizer_config.json": pointer}, nil, "tokenizer_config.json git-lfs"},
		"a template that is cut":    {edits{"tokenizer_config.json": change("{% endfor %}", "{{ m.content }")}, nil, "template"},
		"a dangling config":         {edits{"tokenizer_config.json": gone}, func(dir string) { link(dir, "tokenizer_config.json", "../blobs/gone") }, "tokenizer_config.json ../blobs/gone"},
		"a dangling template":       {nil, func(dir string) { link(dir, "chat_template.jinja", "../blobs/gone") }, "chat_template.jinja ../blobs/gone"},
		"a dangling shard":          {edits{shard: gone}, func(dir string) { link(dir, shard, "../blobs/gone") }, shard},
		"a dangling index":          {edits{"model.safetensors.index.json": gone}, func(dir string) { link(dir, "model.safetensors.index.json", "../blobs/gone") }, "../blobs/gone"},
		"a shard that is cut":       {edits{shard: func(d []byte) []byte { return d[:len(d)-2] }}, nil, shard + " download"},
		"a shard that is not there": {edits{shard: gone}, func(dir string) { writeIn(t, dir, shard+".incomplete", "x") }, shard + ".incomplete"},
		"an empty tokenizer":        {edits{"tokenizer.json": func([]byte) []byte { return []byte{} }}, nil, "tokenizer.json empty"},
		"another tensor":            {edits{"config.json": change(`"kv_lora_rank": 64`, `"kv_lora_rank": 32`)}, nil, "kv_a_proj"},
		"a token beyond":            {edits{"tokenizer.json": change(`"added_tokens": [`, `"added_tokens": [{"id": 8192, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},`)}, nil, "8192 <extra> vocab_size"},
		"a pipe": {edits{"tokenizer.json": gone}, func(dir string) {
			if err := unix.Mkfifo(filepath.Join(dir, "tokenizer.json"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "tokenizer.json pipe"},
		"an endless template": {nil, func(dir string) { link(dir, "chat_template.jinja", "/dev/zero") }, "chat_template.jinja device"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, modelDir, x.edits)
			if x.more != nil {
				x.more(dir)
			}
			checkFaulty(t, dir, strings.HasPrefix(name, "pointer"), strings.Fields(x.words))
		})
	}
}

// checkFaulty expects that a command, or all of them, refuse the folder in these words, that the
// doctor does so, too, and that nothing is left behind.
func checkFaulty(t *testing.T, dir string, all bool, words []string) {
	t.Helper()
	state, kept := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	t.Setenv("XDG_STATE_HOME", state)
	commands := [][]string{
		{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--precision", "int8", "--cache-dir", kept},
		{"run", "--precision", "int8", "--cache-dir", kept, "hi"},
		{"plan"},
		{"compare", "--golden", modelDir},
		{"bench", "--precision", "int8", "--cache-dir", kept},
		{"bench", "model", "--precision", "int8", "--cache-dir", kept},
		{"convert", "--precision", "int8", "--cache-dir", kept},
	}
	if !all { // all commands ask the same function
		commands = commands[:1]
	}
	for _, args := range commands {
		refuses(t, 1, append(args, "--model", dir), words...)
	}
	// The doctor tells what else it sees.
	o := krater(t, "", "doctor", "--model", dir)
	if o.status != 1 || !strings.Contains(o.out, "\nwarn") && !strings.HasPrefix(o.out, "warn") {
		t.Errorf("doctor: status %d\n%s%s", o.status, o.out, o.err)
	}
	checkComplaint(t, grep(o.out, "model files"), words...)
	for _, dir := range []string{state, filepath.Dir(kept)} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// writeIn writes a file into a folder.
func writeIn(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// grep is the lines of a text that hold a word.
func grep(text, word string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestConfigAlone: a folder that has a config and nothing else can be planned.
func TestConfigAlone(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(modelDir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	writeIn(t, dir, "config.json", string(data))
	answers(t, "", "plan", "--model", dir, "--vram", "8GiB")
	if out := answers(t, "", "doctor", "--model", dir); !strings.Contains(out, "the plan uses config.json only") {
		t.Errorf("%s", out)
	}
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--model", dir}, "tokenizer.json")
}

// TestRefusedPlan: a model that does not fit leaves nothing behind either.
func TestRefusedPlan(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	m := goodMachine()
	m.Memory.Total, m.Memory.Available = 64<<20, 32<<20
	if o := on(t, m, "serve", "--listen", "127.0.0.1:0", "--log-level", "error"); o.status != 1 || !strings.Contains(o.err, "--kv-cache") {
		t.Errorf("status %d: %s", o.status, o.err)
	}
	text := write(t, "text", strings.Repeat("not a heat map ", 10))
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--heat-file", text}, "heat map")
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestEndTokens: the tokenizer's end token ends answers whatever the configs say, and where no file
// names one, a warning says so.
func TestEndTokens(t *testing.T) {
	const other = `"eos_token_id": 2`
	set := func(to string) func([]byte) []byte {
		return func(d []byte) []byte { return bytes.Replace(d, []byte(`"eos_token_id": 1`), []byte(to), 1) }
	}
	want := answers(t, "", "run", "--temperature", "0", "--max-tokens", "60", lighthouse)
	for name, edits := range map[string]map[string]func([]byte) []byte{
		"nowhere else":    {"config.json": set(`"eos_token_id": null`), "generation_config.json": gone},
		"others as well":  {"config.json": set(other), "generation_config.json": set(other)},
		"one of them too": {"generation_config.json": set(other)},
	} {
		o := krater(t, "", "run", "--temperature", "0", "--max-tokens", "60", "--model", copyDir(t, modelDir, edits), lighthouse)
		if o.status != 0 || o.out != want || strings.Contains(o.err, "end token") || strings.Contains(o.err, "ends answers") {
			t.Errorf("%s: %q, want %q\n%s", name, o.out, want, o.err)
		}
	}
	nobody := copyDir(t, modelDir, map[string]func([]byte) []byte{
		"config.json": set(`"eos_token_id": null`), "generation_config.json": gone,
		"tokenizer_config.json": func(d []byte) []byte { return bytes.Replace(d, []byte(`"eos_token"`), []byte(`"was_eos"`), 1) },
	})
	if o := krater(t, "", "run", "--max-tokens", "2", "--model", nobody, "hi"); o.status != 0 || !strings.Contains(o.err, "ends answers") {
		t.Errorf("status %d: %s", o.status, o.err)
	}
	if out := answers(t, "", "doctor", "--model", nobody); !strings.Contains(grep(out, "end token"), "warn") {
		t.Errorf("%s", out)
	}
	s := open(t, "--model", nobody)
	if text := s.log.String(); !strings.Contains(text, "end token") {
		t.Errorf("the log has no warning:\n%s", text)
	}
}

// TestOddInputs: what is no regular file is refused by name wherever a file is named.
func TestOddInputs(t *testing.T) {
	dir := t.TempDir()
	fifo, socket := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	serve := []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error"}
	for path, kind := range map[string]string{fifo: "pipe", socket: "socket", "/dev/zero": "device"} {
		for _, args := range [][]string{
			append(serve, "--api-keys", path),
			append(serve, "--tls-cert", path, "--tls-key", path),
			append(serve, "--heat-file", path),
			{"run", "--file", path},
			{"ppl", "--text", path},
			{"heatmap", "--load", path},
			{"template", "--template", path},
			{"trace", "show", path},
			{"batch", "submit", path},
			{"plan", "--cpu", path},
			{"plan", "--card", path},
		} {
			refuses(t, 1, args, path, kind)
		}
		refuses(t, 2, []string{"run", "--config", path, "hi"}, path, kind)
	}
	refuses(t, 1, []string{"heatmap", "--text", fifo}, fifo, "pipe")
}
