package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// detached starts a server whose output is a pipe, by a command line if one is given, and gives its
// address and the pipe's end once it is ready.
func detached(t *testing.T, before ...string) (s *site, cmd *exec.Cmd, output *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	output, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := append(before, self, "serve", "--listen", "127.0.0.1:0", "--batch-dir", "off")
	cmd = exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = programEnv(), w, w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, or the test has failed
		output.Close()
	})
	in := bufio.NewScanner(output)
	for in.Scan() {
		var line struct{ Message, Listen string }
		if json.Unmarshal(in.Bytes(), &line) == nil && line.Message == "ready" {
			return &site{t: t, base: "http://" + line.Listen, http: &http.Client{Transport: &http.Transport{}}, log: newLines()}, cmd, output
		}
	}
	t.Fatalf("the server is not ready: %v, %v", in.Err(), cmd.Wait())
	return nil, nil, nil
}

// TestClosedLog: a server whose output has no reader any more goes on, counts the lines that it
// drops, and ends as usual.
func TestClosedLog(t *testing.T) {
	s, cmd, output := detached(t)
	output.Close()
	for range 2 {
		if got := s.reply(t, routes[0], greedy(lighthouse, 3)); got.completion != 3 {
			t.Errorf("%+v", got)
		}
	}
	s.poll(patience, func() error { // the line of a request is written after its answer
		if s.metrics()["krater:log_lines_dropped"] < 2 {
			return errors.New("no lines are counted as dropped")
		}
		return nil
	})
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		t.Error(err)
	}
}

// TestNohup: a server that was started to outlive its terminal does.
func TestNohup(t *testing.T) {
	s, cmd, output := detached(t, "/bin/sh", "-c", `trap "" HUP; exec "$@"`, "sh")
	defer output.Close()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := s.reply(t, routes[0], greedy(lighthouse, 3)); got.completion != 3 {
		t.Errorf("%+v", got)
	}
	if m := s.metrics(); m["krater:draining"] != 0 || m["krater:log_lines_dropped"] != 0 {
		t.Errorf("%v", m)
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
