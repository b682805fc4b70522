package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// chatEnv is the environment of a chat with a state folder of its own.
func chatEnv(t *testing.T) (env []string, history string) {
	dir := t.TempDir()
	return []string{"XDG_STATE_HOME=" + dir, "NO_COLOR=1"}, filepath.Join(dir, "krater", "chat-history")
}

// TestChatOnATerminal: the built-in model answers twice, of which the second answer finds the first
// in the cache; lines are edited, pasted and found again.
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
	l.wait(t, "Press Ctrl-C again")
	l.waitCount(t, ">>> ", 5)
	l.typed(t, "\x03")
	l.ended(t, 0)
	if _, err := os.Stat(history); err == nil {
		t.Error("--no-history keeps one")
	}
	srv.Close()
	for server, words := range map[string]string{srv.URL: "does not answer: connection refused; start a server with krater serve, or name another one with --server", "here": "--server here: want http://HOST:PORT"} {
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
	for _, args := range [][]string{{"--", "llama3"}, {"--model", modelDir, "llama3"}, {"llama3 is a what?"}} {
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
		if shown := l.String(); strings.Contains(shown, "prompt tokens") != (status == 0) || strings.Contains(shown, "krater pull ORG/MODEL downloads one") != (answer == "\r") {
			t.Errorf("%q: got %q", answer, shown)
		}
	}
	l := onScreen(t, env, "run", modelDir)
	l.wait(t, "a model to talk with? [y/N] ")
	l.typed(t, "n\r")
	l.wait(t, ">>> ")
	l.typed(t, "/exit\r")
	l.ended(t, 0)
}

// TestSystemNeedsATemplate: a system message without a template is refused.
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

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
