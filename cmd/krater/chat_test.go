package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"krater/actors/engine"
	"krater/cmd/krater/term"
	"krater/transport/api"
	"krater/transport/client"
)

// typed is a line of a scripted user; err is what a key gives instead.
type typed struct {
	line   string
	pasted bool
	err    error
}

// script types lines, then leaves; it keeps the prompts.
type script struct {
	lines   []typed
	prompts []string
}

func (s *script) Read(prompt string) (string, bool, error) {
	s.prompts = append(s.prompts, prompt)
	if len(s.lines) == 0 {
		return "", false, io.EOF
	}
	l := s.lines[0]
	s.lines = s.lines[1:]
	return l.line, l.pasted, l.err
}

// says are lines that are typed as they are.
func says(lines ...string) *script {
	s := &script{}
	for _, l := range lines {
		s.lines = append(s.lines, typed{line: l})
	}
	return s
}

// echo answers what it was asked last, and keeps the conversations.
type echo struct {
	asked [][]client.Message
	ends  []chatEnd // of the answers, in order
	err   error
}

func (e *echo) Ask(_ context.Context, messages []client.Message, show func(string) error) (chatEnd, error) {
	if e.err != nil {
		return chatEnd{}, e.err
	}
	e.asked = append(e.asked, messages)
	r := chatEnd{prompt: 10 * len(messages), tokens: 2}
	if len(e.ends) > 0 {
		r, e.ends = e.ends[0], e.ends[1:]
	}
	if r.cancelled && r.tokens == 0 {
		return r, nil
	}
	return r, show("re: " + messages[len(messages)-1].Content)
}

// talked runs a scripted chat and gives what was shown.
func talked(t *testing.T, c *conversation, s *script, e *echo) string {
	t.Helper()
	var out bytes.Buffer
	c.talker, c.lines, c.out = e, s, &out
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestMessages: of one line and several, typed and pasted.
func TestMessages(t *testing.T) {
	pasted := func(lines ...string) *script {
		s := &script{}
		for i, l := range lines {
			s.lines = append(s.lines, typed{line: l, pasted: i < len(lines)-1})
		}
		return s
	}
	for name, c := range map[string]struct {
		in   *script
		want []string
	}{
		"one line":             {says("hello", "", "  ", "again"), []string{"hello", "again"}},
		"backslash":            {says(`a \`, `b\`, "c"), []string{"a \nb\nc"}},
		"block":                {says(`"""first`, `/second \`, "", `third"""`, "next"), []string{"first\n/second \\\n\nthird", "next"}},
		"block of one line":    {says(`"""one"""`), []string{"one"}},
		"block on its own":     {says(`"""`, "x", `""" `), []string{"\nx\n"}},
		"quotes inside":        {says(`say """ now`), []string{`say """ now`}},
		"a slash":              {says("//etc is a folder"), []string{"/etc is a folder"}},
		"pasted":               {pasted("one", `two \`, "/three", "four"), []string{"one\ntwo \\\n/three\nfour"}},
		"pasted quotes":        {pasted(`"""`, "x"), []string{"\"\"\"\nx"}},
		"Ctrl-D ends a text":   {&script{lines: []typed{{line: `"""a`}, {err: io.EOF}, {line: "b"}}}, []string{"a\n", "b"}},
		"Ctrl-C gives it up":   {&script{lines: []typed{{line: `"""a`}, {err: term.ErrInterrupted}, {line: "b"}}}, []string{"b"}},
		"Ctrl-C behind a text": {&script{lines: []typed{{err: term.ErrDropped}, {err: term.ErrDropped}, {line: "b"}}}, []string{"b"}},
	} {
		e := &echo{}
		talked(t, &conversation{}, c.in, e)
		var got []string
		for _, m := range e.asked {
			got = append(got, m[len(m)-1].Content)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	s := says(`"""`, "x", `"""`)
	talked(t, &conversation{}, s, &echo{})
	if want := []string{">>> ", "... ", "... ", ">>> "}; !slices.Equal(s.prompts, want) {
		t.Errorf("prompts %q, want %q", s.prompts, want)
	}
	big := strings.Repeat("x", 3<<20)
	e := &echo{}
	if out := talked(t, &conversation{}, says(big+`\`, big+`\`, "small"), e); len(e.asked) != 1 || !strings.Contains(out, "may have 4 MiB") {
		t.Errorf("%d messages of any size", len(e.asked))
	}
}

// TestChatRemembers what was said, with the system text, until it is told to forget.
func TestChatRemembers(t *testing.T) {
	e := &echo{}
	file := filepath.Join(t.TempDir(), "talk.json")
	out := talked(t, &conversation{system: "Be brief."}, says("a", "b", "/undo", "c", "/save "+file, "/save "+file, "/save", "/system Be long.", "d", "/system", "/reset", "/system none", "e", "/nonsense", "/help", "/exit", "f"), e)
	roles := func(m []client.Message) string {
		var parts []string
		for _, x := range m {
			parts = append(parts, x.Role[:1]+":"+x.Content)
		}
		return strings.Join(parts, "|")
	}
	want := []string{"s:Be brief.|u:a", "s:Be brief.|u:a|a:re: a|u:b", "s:Be brief.|u:a|a:re: a|u:c", "s:Be long.|u:a|a:re: a|u:c|a:re: c|u:d", "u:e"}
	for i, m := range e.asked {
		if i >= len(want) || roles(m) != want[i] {
			t.Errorf("question %d: got %q, want %q", i, roles(m), want[min(i, len(want)-1)])
		}
	}
	if len(e.asked) != len(want) {
		t.Errorf("%d questions, want %d", len(e.asked), len(want))
	}
	for _, w := range []string{"re: a\n", "2 messages are left", "is written", "is there already", "/save FILE", "System text: Be long.", "There is no system text.", "There is no /nonsense", "/undo  "} {
		if !strings.Contains(out, w) {
			t.Errorf("%q is not shown: %s", w, out)
		}
	}
	saved := decode[struct{ Messages []client.Message }](t, string(readFile(t, file)))
	if roles(saved.Messages) != "s:Be brief.|u:a|a:re: a|u:c|a:re: c" {
		t.Errorf("saved %q", roles(saved.Messages))
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestChatSaysHowFullTheContextIs, and what to do when nothing goes into it any more.
func TestChatSaysHowFullTheContextIs(t *testing.T) {
	e := &echo{ends: []chatEnd{{prompt: 50, tokens: 10}, {prompt: 70, tokens: 10, cached: 60}, {prompt: 90, tokens: 10, cut: true}}}
	out := talked(t, &conversation{name: "small", context: 100}, says("a", "b", "/context", "c"), e)
	if strings.Contains(out, "60 of 100") || strings.Count(out, "context: 80 of 100 tokens, 80 %") != 2 || !strings.Contains(out, "60 of the last prompt from the cache") ||
		!strings.Contains(out, "the context is full (100 tokens)") || !strings.Contains(out, "small, 100 tokens of context") {
		t.Errorf("got %s", out)
	}
	for _, err := range []error{&engine.Error{Kind: engine.ContextLength, Message: "it has 101 tokens"}, &api.Error{Code: api.CodeContextLength, Message: "it has 101 tokens"}} {
		e := &echo{err: err}
		c := &conversation{messages: []client.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}}
		if out := talked(t, c, says("c"), e); !strings.Contains(out, "The conversation no longer fits: it has 101 tokens. /undo") || len(c.messages) != 2 {
			t.Errorf("got %s, %v", out, c.messages)
		}
	}
	if out := talked(t, &conversation{}, says("c"), &echo{err: errors.New("refused")}); !strings.Contains(out, "No answer: refused.") {
		t.Errorf("got %s", out)
	}
	e = &echo{ends: []chatEnd{{cancelled: true}, {tokens: 1, cancelled: true}, {tokens: 5, cut: true}}}
	c := &conversation{most: 5}
	if out := talked(t, c, says("gone", "half", "cut"), e); strings.Count(out, "Cancelled.") != 2 || !strings.Contains(out, "cut after 5 tokens (--max-tokens)") || len(c.messages) != 4 {
		t.Errorf("got %s, %v", out, c.messages)
	}
}

// TestInterruptsLeaveAtTheSecond, unless something was typed between them.
func TestInterruptsLeaveAtTheSecond(t *testing.T) {
	e := &echo{}
	s := &script{lines: []typed{{err: term.ErrInterrupted}, {line: "a"}, {err: term.ErrInterrupted}, {err: term.ErrDropped}, {err: term.ErrInterrupted}, {err: term.ErrInterrupted}, {line: "b"}}}
	if out := talked(t, &conversation{}, s, e); len(e.asked) != 1 || strings.Count(out, "Ctrl-C once more") != 3 {
		t.Errorf("%d questions: %s", len(e.asked), out)
	}
}

// chatEnv is the environment of a chat with a state folder of its own.
func chatEnv(t *testing.T) (env []string, history string) {
	dir := t.TempDir()
	return []string{"XDG_STATE_HOME=" + dir, "NO_COLOR=1"}, filepath.Join(dir, "krater", "chat-history")
}

// TestChatOnATerminal: the built-in model answers twice, of which the second answer finds the first in the cache; lines
// are edited, pasted and found again.
func TestChatOnATerminal(t *testing.T) {
	env, history := chatEnv(t)
	l := onScreen(t, env, "run", "--temperature", "0", "--max-tokens", "12", "--threads", "2", "--system", strings.Repeat("Be brief. ", 12))
	l.wait(t, "krater-tiny, 2048 tokens of context")
	l.waitCount(t, ">>> ", 1)
	l.typed(t, "What is a lightXX\x7f\x7fhouse?\r")
	l.waitCount(t, ">>> ", 2)
	l.typed(t, "/context\r")
	l.wait(t, "0 of the last prompt from the cache")
	l.typed(t, "\x1b[200~What is\ra river?\x1b[201~\r")
	l.waitCount(t, ">>> ", 4)
	l.typed(t, "/context\r")
	l.waitCount(t, "of the last prompt from the cache", 2)
	l.waitCount(t, ">>> ", 5)
	l.typed(t, "given up\x03")
	l.waitCount(t, ">>> ", 6)
	l.typed(t, "\x1b[A\x1b[A\r") // the line before /context: the last one of what was pasted
	l.waitCount(t, ">>> ", 7)
	l.typed(t, "\x04")
	l.ended(t, 0)
	shown := l.String()
	if strings.Contains(shown, "panic") || strings.Contains(shown, "No answer") || strings.Count(shown, "\x1b[?2004h") != strings.Count(shown, "\x1b[?2004l") {
		t.Errorf("got %q", shown)
	}
	if cached := regexp.MustCompile(`%, (\d+) of the last prompt`).FindAllStringSubmatch(shown, -1); cached[0][1] != "0" || cached[1][1] == "0" {
		t.Errorf("of the prompts %v were in the cache: the second turn computes the first again: %q", cached, shown)
	}
	if got, want := string(readFile(t, history)), "What is a lighthouse?\n/context\nWhat is\na river?\n/context\na river?\n"; got != want {
		t.Errorf("history %q, want %q", got, want)
	}
	if info, err := os.Stat(history); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestChatWithAServer: Ctrl-C cancels the answer, and leaves when typed twice at an empty prompt.
func TestChatWithAServer(t *testing.T) {
	asked, gone := make(chan string, 4), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"far","object":"model","created":1,"owned_by":"x","max_model_len":4096}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- string(body)
		fmt.Fprint(w, "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"far\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"one \"},\"finish_reason\":null}]}\n\n")
		w.(http.Flusher).Flush()
		if strings.Contains(string(body), "endless") {
			<-r.Context().Done()
			close(gone)
			return
		}
		fmt.Fprint(w, "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"far\",\"choices\":[],\"usage\":{\"prompt_tokens\":4000,\"completion_tokens\":90,\"total_tokens\":4090}}\n\ndata: [DONE]\n\n")
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	env, history := chatEnv(t)
	l := onScreen(t, env, "chat", "--server", srv.URL, "--no-history", "--system", "Hear.")
	l.wait(t, "far, 4096 tokens of context")
	l.wait(t, ">>> ")
	l.typed(t, "short\r")
	l.wait(t, "context: 4090 of 4096 tokens, 99 %")
	if body := <-asked; !strings.Contains(body, `"content":"Hear."`) || !strings.Contains(body, `"model":"far"`) || !strings.Contains(body, `"include_usage":true`) {
		t.Errorf("asked %s", body)
	}
	l.waitCount(t, ">>> ", 2)
	l.typed(t, "/undo\rendless\r")
	l.waitCount(t, "one ", 2)
	l.typed(t, "\x03")
	l.wait(t, "Cancelled.")
	<-gone
	if body := <-asked; strings.Contains(body, "short") {
		t.Errorf("what was taken back is sent: %s", body)
	}
	l.waitCount(t, ">>> ", 4)
	l.typed(t, "\x03")
	l.wait(t, "Ctrl-C once more")
	l.waitCount(t, ">>> ", 5)
	l.typed(t, "\x03")
	l.ended(t, 0)
	if _, err := os.Stat(history); err == nil {
		t.Error("--no-history keeps one")
	}
	srv.Close()
	for server, words := range map[string]string{srv.URL: "does not answer: connection refused; krater serve starts a server, --server names another", "here": "--server here: want http://HOST:PORT"} {
		l := onScreen(t, env, "chat", "--server", server)
		l.ended(t, 1)
		if !strings.Contains(l.String(), words) {
			t.Errorf("got %q, want %q", l.String(), words)
		}
	}
	refuses(t, 1, []string{"chat"}, "needs a terminal", "krater run")
}

// TestWordsThatNameModels: krater run asks whether a model was meant; -- makes a question of it.
func TestWordsThatNameModels(t *testing.T) {
	o := krater(t, "", "run", "llama3")
	if o.status != 2 || o.out != "" || !strings.Contains(o.err, `"llama3" looks like a model`) || !strings.Contains(o.err, "--model DIR") || !strings.Contains(o.err, "krater run -- llama3 asks") {
		t.Errorf("%d %q %q", o.status, o.out, o.err)
	}
	if o := krater(t, "", "run", modelDir); o.status != 2 || !strings.Contains(o.err, "krater run --model "+modelDir) {
		t.Errorf("%d %q", o.status, o.err)
	}
	if o := krater(t, "", "run", "qwen3-30b-a3b"); o.status != 2 || !strings.Contains(o.err, "--shape qwen3-30b-a3b") {
		t.Errorf("%d %q", o.status, o.err)
	}
	if o := krater(t, "", "run", "krater-tiny"); o.status != 2 || !strings.Contains(o.err, "built in") {
		t.Errorf("%d %q", o.status, o.err)
	}
	for _, args := range [][]string{{"--", "llama3"}, {"--model", modelDir, "llama3"}, {"llama3 is what?"}} {
		if o := krater(t, "", append([]string{"run", "--max-tokens", "1"}, args...)...); o.status != 0 || o.out == "" {
			t.Errorf("%v: %d %q", args, o.status, o.err)
		}
	}
	env, _ := chatEnv(t)
	for answer, status := range map[string]int{"y\r": 0, "\r": 2} {
		l := onScreen(t, env, "run", "--max-tokens", "2", "llama3")
		l.wait(t, "[y/N] ")
		l.typed(t, answer)
		l.ended(t, status)
		if shown := l.String(); strings.Contains(shown, "prompt tokens") != (status == 0) || strings.Contains(shown, "Krater downloads nothing") != (answer == "\r") {
			t.Errorf("%q: got %q", answer, shown)
		}
	}
	l := onScreen(t, env, "run", modelDir)
	l.wait(t, "the model to talk with? [y/N] ")
	l.typed(t, "n\r")
	l.wait(t, ">>> ")
	l.typed(t, "/exit\r")
	l.ended(t, 0)
}

// TestSystemNeedsATemplate: a system text that nobody would read is refused.
func TestSystemNeedsATemplate(t *testing.T) {
	refuses(t, 1, []string{"run", "--system", "x", "--raw", "hi"}, "--system", "--raw")
	refuses(t, 1, []string{"run", "--system", "x", "--shape", "deepseek-v2-lite", "--layers", "2", "--vocab", "300", "hi"}, "--system", "no chat template")
}

// TestChatIsEndedBySignals: the terminal is as before, though it was read key by key.
func TestChatIsEndedBySignals(t *testing.T) {
	env, _ := chatEnv(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(s) { // the tests run under nohup, and the program keeps to that
			continue
		}
		l := onScreen(t, env, "chat", "--threads", "1")
		l.wait(t, ">>> ")
		if err := l.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		l.ended(t, -1) // by the signal
	}
}
