package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
)

// openTerminal gives the two ends of a pseudo-terminal of cols by rows: what is written to tty is
// read from the other end, and what is written there is typed.
func openTerminal(t *testing.T, cols, rows uint16) (end, tty *os.File) {
	t.Helper()
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { end.Close() })
	if err := unix.IoctlSetPointerInt(int(end.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(end.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	if err := unix.IoctlSetWinsize(int(end.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		t.Fatal(err)
	}
	return end, tty
}

// screen collects what is shown on a terminal.
type screen struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.String()
}

// wait waits until text was shown.
func (s *screen) wait(t *testing.T, text string) {
	t.Helper()
	s.waitCount(t, text, 1)
}

// typist is the program on a terminal of its own, and the user who types there.
type typist struct {
	screen
	cmd    *exec.Cmd
	end    *os.File
	before unix.Termios
	tty    *os.File
	read   chan struct{} // closed when all that was shown is known
}

// onScreen starts the program on a terminal.
func onScreen(t *testing.T, env []string, args ...string) *typist {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &typist{read: make(chan struct{})}
	l.end, l.tty = openTerminal(t, 80, 24)
	state, err := unix.IoctlGetTermios(int(l.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	l.before = *state
	go func() { // ends with the terminal
		defer close(l.read)
		buf := make([]byte, 4096)
		for {
			n, err := l.end.Read(buf)
			_, _ = l.Write(buf[:n]) // never an error
			if err != nil {
				return
			}
		}
	}()
	l.cmd = exec.Command(self, args...)
	l.cmd.Env = append(append(programEnv(), "TERM=xterm-256color"), env...)
	l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = l.tty, l.tty, l.tty
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cmd.Process.Kill() }) // an error where it has ended
	return l
}

func (l *typist) typed(t *testing.T, keys string) {
	t.Helper()
	if _, err := l.end.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// ended waits for the end with a status and checks that the terminal is as it was.
func (l *typist) ended(t *testing.T, status int) {
	t.Helper()
	_ = l.cmd.Wait() // the state tells
	after, err := unix.IoctlGetTermios(int(l.tty.Fd()), unix.TCGETS)
	if err != nil || *after != l.before {
		t.Errorf("%v: the terminal was %+v and is %+v", err, l.before, *after)
	}
	l.tty.Close()
	<-l.read
	if got := l.cmd.ProcessState.ExitCode(); got != status {
		t.Fatalf("status %d, want %d: %q", got, status, l.String())
	}
}

// waitCount waits until text was shown n times.
func (s *screen) waitCount(t *testing.T, text string, n int) {
	t.Helper()
	for end := time.Now().Add(patience); strings.Count(s.String(), text) < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q is not shown %d times: %q", text, n, s.String())
		}
	}
}

// onTerminal runs a command whose output is a terminal, and gives what is shown.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	end, tty := openTerminal(t, 100, 30)
	read := make(chan string)
	go func() {
		data, _ := io.ReadAll(end) // ends with an error when the tty is closed
		read <- string(data)
	}()
	run(args, &console.Env{In: strings.NewReader(""), Out: tty, Err: tty})
	tty.Close()
	return <-read
}

// barsAtOnce has bars drawn however short the work is.
func barsAtOnce(t *testing.T) {
	before := term.BarAfter
	term.BarAfter = 0
	t.Cleanup(func() { term.BarAfter = before })
}

func TestColoursOnATerminalOnly(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if out := onTerminal(t, "doctor"); !strings.Contains(out, "\x1b[32mok\x1b[0m  processor") || !strings.Contains(out, "\x1b[2mrecommended: ") {
		t.Errorf("doctor: got %q", out)
	}
	if out := onTerminal(t, "plan", "--shape", "deepseek-v2-lite", "--card", "rtx-3090", "--vram", "6GiB"); !strings.Contains(out, "\x1b[32m>  ") || !strings.Contains(out, "\x1b[1mPrefill, tok/s") {
		t.Errorf("plan: got %q", out)
	}
	if out := onTerminal(t, "compare", "--golden", "../../testdata/goldens/qwen2", "--model", "../../testdata/goldens/qwen2"); !strings.Contains(out, "\x1b[32mok\x1b[0m") || !strings.Contains(out, "\x1b[32m20 passed, 0 failed\x1b[0m") {
		t.Errorf("compare: got %q", out)
	}
	barsAtOnce(t)
	// A bar stands on the terminal while it works, and is gone at the end.
	out := onTerminal(t, "heatmap", "--text", "../../README.md", "--window", "128")
	if !strings.Contains(out, "heatmap [#") || !strings.Contains(out, "\x1b[2m  layer    one") {
		t.Errorf("heatmap: got %q", out)
	}
	if last := out[strings.LastIndex(out, "heatmap ["):]; !strings.Contains(last, "\r"+strings.Repeat(" ", 60)) {
		t.Errorf("heatmap: the bar stays: %q", last)
	}
	if out := onTerminal(t, "doctor", "--json"); strings.Contains(out, "\x1b") {
		t.Error("JSON has colours")
	}
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Setenv(name, value)
		if out := onTerminal(t, "doctor"); strings.Contains(out, "\x1b") || !strings.Contains(out, "ok  processor") {
			t.Errorf("%s=%s: got %q", name, value, out)
		}
		t.Setenv("NO_COLOR", "")
	}
	t.Setenv("TERM", "xterm")
	if o := execute(t, "", "heatmap", "--text", "../../README.md"); strings.Contains(o.out+o.err, "\x1b") || strings.Contains(o.err, "\r") {
		t.Errorf("colours or a bar where there is no terminal: %q %q", o.out, o.err)
	}
}

// TestSynthReportFollowsItsBar: the bar is gone before the report's first line is written.
func TestSynthReportFollowsItsBar(t *testing.T) {
	barsAtOnce(t)
	out := onTerminal(t, "synth", "--shape", "deepseek-v2-lite", "--layers", "1", "--vocab", "64", "--as", "safetensors", "--out", t.TempDir())
	before, _, found := strings.Cut(out, "deepseek-v2-lite, 1 layers:")
	if !found || !strings.Contains(before, "synth [") {
		t.Fatalf("got %q", out)
	}
	if line := strings.TrimSuffix(before, "\r"); line == before || strings.TrimSpace(line[strings.LastIndex(line, "\r"):]) != "" {
		t.Errorf("the report begins behind %q", before)
	}
}
