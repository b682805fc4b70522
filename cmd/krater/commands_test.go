package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"krater/cmd/krater/console"
	"krater/cmd/krater/version"
)

const (
	modelDir  = "../../models/krater-tiny"
	goldenDir = "../../testdata/goldens/deepseek_v2_lite"
)

// golden holds the reference's results for krater-tiny.
type golden struct {
	Prompts []struct {
		Messages []struct{ Content string }
		Rendered string
		InputIDs []int32 `json:"input_ids"`
		Greedy   []int32 `json:"greedy_ids"`
		Stops    int     `json:"stops_after"`
		Answer   string
	}
	Perplexity struct{ Value float64 }
}

func readGolden(t testing.TB) golden {
	t.Helper()
	data, err := os.ReadFile(modelDir + "/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil || len(g.Prompts) == 0 {
		t.Fatalf("golden.json: %v", err)
	}
	return g
}

// decode reads JSON that must be there.
func decode[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

func TestRun(t *testing.T) {
	for _, p := range readGolden(t).Prompts {
		question := p.Messages[0].Content
		o := krater(t, "", "run", question)
		if o.status != 0 || o.out != p.Answer+"\n" {
			t.Errorf("%s: status %d, %q, want %q", question, o.status, o.out, p.Answer)
		}
		if want := fmt.Sprintf("%d prompt tokens", len(p.InputIDs)); !strings.Contains(o.err, want) {
			t.Errorf("standard error says %q, want %s", o.err, want)
		}
		ids := decode[[]int32](t, answers(t, "", "run", "--ids", "--model", modelDir, question))
		if want := p.Greedy[:p.Stops+1]; !slices.Equal(ids, want) { // with the end token
			t.Errorf("%s: ids %v, want %v", question, ids, want)
		}
	}
}

// TestRunPrompts: a prompt is the same from the command line, a file and
// standard input.
func TestRunPrompts(t *testing.T) {
	p := readGolden(t).Prompts[0]
	n := p.Stops + 1
	for name, args := range map[string][]string{
		"argument": {lighthouse}, "file": {"--file", write(t, "question", lighthouse)}, "standard input": {"-"}, "standard input alone": {},
	} {
		in := ""
		if strings.HasPrefix(name, "standard input") {
			in = lighthouse
		}
		args = append([]string{"run", "--ids", "--ignore-eos", "--max-tokens", fmt.Sprint(n)}, args...)
		if ids := decode[[]int32](t, answers(t, in, args...)); !slices.Equal(ids, p.Greedy[:n]) {
			t.Errorf("%s: %v, want %v", name, ids, p.Greedy[:n])
		}
	}
	if got := answers(t, "", "run", "--max-tokens", "3", lighthouse); !strings.HasPrefix(p.Answer, strings.TrimSuffix(got, "\n")) || got == p.Answer+"\n" {
		t.Errorf("three tokens: %q", got)
	}
	if chat, raw := answers(t, "", "run", "--system", "Be brief.", lighthouse), answers(t, "", "run", "--raw", "--max-tokens", "9", "A lighthouse is"); chat == "\n" || raw == "\n" {
		t.Errorf("%q, %q", chat, raw)
	}
}

// TestRunRaw: --raw prints the same answer as /v1/completions.
func TestRunRaw(t *testing.T) {
	s := open(t)
	text := "A lighthouse is"
	want := s.reply(t, routes[2], greedy(text, 12))
	if got := answers(t, "", "run", "--raw", "--temperature", "0", "--max-tokens", "12", text); got != want.text+"\n" {
		t.Errorf("%q, over HTTP %q", got, want.text)
	}
}

func TestRunSeed(t *testing.T) {
	ask := func(seed int) string {
		return answers(t, "", "run", "--temperature", "2", "--seed", fmt.Sprint(seed), "--max-tokens", "16", "--ignore-eos", "--ids", "river")
	}
	seen := map[string]bool{}
	for seed := range 3 {
		first := ask(seed)
		seen[first] = true
		if again := ask(seed); again != first {
			t.Errorf("seed %d gives %s, then %s", seed, first, again)
		}
	}
	if len(seen) < 2 {
		t.Error("all seeds give the same")
	}
}

func TestRunTooLong(t *testing.T) {
	refuses(t, 1, []string{"run", strings.Repeat("word ", 3000)}, "2048", "300")
}

func TestTokenize(t *testing.T) {
	p := readGolden(t).Prompts[0]
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	bare := strings.ReplaceAll(lighthouse, " ", "\u00a0\U0001F600\n")
	in := strings.Join([]string{b64(p.Rendered), "", b64(bare), "  " + b64("x") + "\r"}, "\n")
	out := answers(t, in, "tokenize")
	got := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(got) != 4 || !slices.Equal(decode[[]int32](t, got[0]), p.InputIDs) || got[1] != "[]" {
		t.Fatalf("%q, want first %v", out, p.InputIDs)
	}
	back := strings.Split(answers(t, out, "detokenize"), "\n")
	if decode[string](t, back[0]) != p.Rendered || back[1] != `""` || decode[string](t, back[2]) != bare {
		t.Errorf("%q", back)
	}
	if skipped := answers(t, got[0], "detokenize", "--skip-special", "--model", modelDir); decode[string](t, skipped) != lighthouse {
		t.Errorf("without special tokens: %q", skipped)
	}
	if plain := decode[[]int32](t, answers(t, b64(p.Rendered), "tokenize", "--plain")); len(plain) <= len(p.InputIDs) || slices.Contains(plain, 3) {
		t.Errorf("--plain: %v", plain)
	}
	special := decode[[]int32](t, answers(t, b64(lighthouse), "tokenize", "--add-special"))
	without := decode[[]int32](t, answers(t, b64(lighthouse), "tokenize"))
	if !slices.Equal(special, append([]int32{0}, without...)) {
		t.Errorf("--add-special: %v, without %v", special, without)
	}
	if none := answers(t, "", "tokenize"); none != "" {
		t.Errorf("no line: %q", none)
	}
}

// TestBadLines: the line is named, those before it are answered.
func TestBadLines(t *testing.T) {
	for _, c := range []struct{ command, in, out, words string }{
		{"tokenize", "\n!!!\n", "[]\n", "line 2|base64"},
		{"detokenize", "[]\n[1", "\"\"\n", "line 2"},
		{"detokenize", "[]\n[]\n[99999999]\n", "\"\"\n\"\"\n", "line 3|99999999"},
		{"detokenize", "[-1]\n", "", "line 1|-1"},
		{"detokenize", "[1.5]\n", "", "line 1"},
		{"detokenize", "{}\n", "", "line 1"},
		{"detokenize", "[1] [2]\n", "", "line 1"},
	} {
		o := krater(t, c.in, c.command)
		if o.status != 1 || o.out != c.out {
			t.Errorf("%s %q: status %d, %q, want %q", c.command, c.in, o.status, o.out, c.out)
		}
		checkComplaint(t, o.err, strings.Split(c.words, "|")...)
	}
}

// TestLineByLine: an answer does not wait for the next line.
func TestLineByLine(t *testing.T) {
	in, ask := io.Pipe()
	listen, out := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- run([]string{"tokenize"}, &console.Env{In: in, Out: out, Err: io.Discard})
		out.Close()
	}()
	answers := bufio.NewReader(listen)
	for range 3 {
		if _, err := io.WriteString(ask, "\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := answers.ReadString('\n'); err != nil || line != "[]\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
	ask.Close()
	if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
	if s := <-status; s != 0 {
		t.Errorf("status %d", s)
	}
}

// TestInterrupt: ctrl-C ends an answer, what was said stays, and the exit status
// is the shell's for it.
func TestInterrupt(t *testing.T) {
	p := launch(t, "run", "--raw", "--ignore-eos", "--max-tokens", "2000", "A\nriver")
	p.out.waitAny(t, p.done)
	p.signal(syscall.SIGINT)
	if status := p.wait(); status != 130 {
		t.Errorf("status %d\n%s", status, p.err)
	}
	checkComplaint(t, p.err.String(), "answer tokens")
}

func TestTemplate(t *testing.T) {
	p := readGolden(t).Prompts[0]
	in := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"add_generation_prompt":true}`, lighthouse) + "\n{\"messages\":5}\n{\n"
	got := strings.Split(answers(t, in, "template"), "\n")
	if len(got) != 4 || decode[string](t, got[0]) != p.Rendered {
		t.Fatalf("%q, want first %q", got, p.Rendered)
	}
	for _, line := range got[1:3] {
		if decode[struct{ Error string }](t, line).Error == "" {
			t.Errorf("%q holds no error", line)
		}
	}
	own := write(t, "own.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
	if got := answers(t, in[:strings.IndexByte(in, '\n')], "template", "--template", own); decode[string](t, got) != "[user]"+lighthouse {
		t.Errorf("%q", got)
	}
	refuses(t, 1, []string{"template", "--template", write(t, "bad.jinja", "{% for %}")}, "template")
}

func TestVersion(t *testing.T) {
	out := answers(t, "", "version")
	for _, flag := range []string{"--version", "-v"} {
		if got := answers(t, "", flag); got != out {
			t.Errorf("%s prints %q, version %q", flag, got, out)
		}
	}
	if !regexp.MustCompile(`^krater \d+\.\d+\.\d+ \((commit [0-9a-f]+(-dirty)?, \d{4}-\d\d-\d\d, )?go1\.\S+ linux/\w+\)\n$`).MatchString(out) {
		t.Errorf("%q", out)
	}
	b := version.Info{Version: "1.2.3", Go: "go1.99", OS: "linux", Arch: "amd64"}
	b.Noted([]debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}, {Key: "vcs.time", Value: "2026-11-29T06:00:00Z"}, {Key: "vcs.modified", Value: "true"}})
	if got := b.String(); got != "krater 1.2.3 (commit 0123456789ab-dirty, 2026-11-29, go1.99 linux/amd64)" {
		t.Errorf("%q", got)
	}
	if got := decode[version.Info](t, answers(t, "", "version", "--json")); got.Version != version.Number || got.Go == "" {
		t.Errorf("%+v", got)
	}
	out = answers(t, "", "version", "--licenses")
	for _, words := range []string{
		"WordNet", "Princeton University", "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION", "Copyright 2009 The Go Authors",
		"Copyright (c) 2013 The Gorilla WebSocket Authors", "SIL OPEN FONT LICENSE Version 1.1",
	} {
		if !strings.Contains(out, words) {
			t.Errorf("--licenses has no %q", words)
		}
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) < 20 {
		t.Fatalf("the build knows %d modules", len(info.Deps))
	}
	for _, m := range info.Deps {
		if !strings.Contains(out, m.Path+" "+m.Version+" (") {
			t.Errorf("--licenses has no text of %s %s", m.Path, m.Version)
		}
	}
}
