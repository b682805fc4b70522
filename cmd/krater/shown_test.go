package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/cmd/krater/console"
)

// TestForeignTextOnATerminal: control characters in names, in what a template raises, in answers
// and in the log are shown and not sent. Elsewhere an answer's bytes pass unchanged.
func TestForeignTextOnATerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	none := func(what, out string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %q is not in %q", what, w, out)
			}
		}
		if strings.ContainsAny(out, "\x1b\a\u009b") {
			t.Errorf("%s: control characters in %q", what, out)
		}
	}
	named := func(edits map[string]func([]byte) []byte) string {
		dir := filepath.Join(t.TempDir(), "m\x1b[31m\u009b")
		if err := os.Rename(copyDir(t, modelDir, edits), dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := named(nil)
	none("doctor", onTerminal(t, "doctor", "--model", dir), `m\x1b[31m\u009b needs`)
	none("an option", onTerminal(t, "run", "--mod\x1bel", dir), `--mod\x1bel`)
	none("a missing file", onTerminal(t, "run", "--model", named(map[string]func([]byte) []byte{"config.json": gone}), "hi"), `m\x1b[31m\u009b`)
	raises := copyDir(t, modelDir, map[string]func([]byte) []byte{"tokenizer_config.json": func(d []byte) []byte {
		return bytes.Replace(d, []byte(`{% for message`), []byte(`{{ raise_exception('\u001b[2J no') }}{% for message`), 1)
	}})
	none("a template", onTerminal(t, "run", "--model", raises, "hi"), `\x1b[2J no`)
	// A model whose every e is an escape character.
	escapes := copyDir(t, modelDir, map[string]func([]byte) []byte{"tokenizer.json": func(d []byte) []byte {
		return bytes.Replace(d, []byte(`"decoder": {`), []byte(`"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Replace", "pattern": {"String": "e"}, "content": "\u001b"}]}, "was": {`), 1)
	}})
	ask := []string{"run", "--model", escapes, "--temperature", "0", lighthouse}
	answer := readGolden(t).Prompts[0].Answer
	none("an answer", onTerminal(t, ask...), strings.ReplaceAll(answer, "e", `\x1b`))
	var text bytes.Buffer
	log, err := (&console.LogFlags{LogLevel: "info", LogFormat: "text"}).Logger(&console.Env{Err: &text})
	if err != nil {
		t.Fatal(err)
	}
	log.Warn().Str("file", "a\x1b[31m").Msg("odd\x1b[2J name")
	none("the log", text.String(), `odd\x1b[2J name`, `a\x1b[31m`)
	if got := answers(t, "", ask...); got != strings.ReplaceAll(answer, "e", "\x1b")+"\n" {
		t.Errorf("not on a terminal: %q", got)
	}
}
