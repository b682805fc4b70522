package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is Krater in a process of its own.
type program struct {
	t        testing.TB
	cmd      *exec.Cmd
	out, err *lines
	done     chan struct{} // closed at its end
	status   int           // its exit status, -1: killed by a signal
	started  time.Time
}

// programEnv makes the test binary the program. The race detector's own pause at
// the end of a process is left out.
func programEnv() []string { return append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0") }

// launch starts the program; it is killed at the end of the test.
func launch(t testing.TB, args ...string) *program { t.Helper(); return launchBy(t, nil, args...) }

// launchBy is launch by another program, whose arguments end with those of this one, and which becomes it.
func launchBy(t testing.TB, by []string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(context.Background())
	line := slices.Concat(by, []string{self}, args)
	p := &program{t: t, cmd: exec.CommandContext(ctx, line[0], line[1:]...), out: newLines(), err: newLines(), done: make(chan struct{})}
	p.cmd.Env = programEnv()
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			p.status = exit.ExitCode()
		} else if err != nil {
			p.status = -1
		}
	}()
	t.Cleanup(func() {
		kill()
		<-p.done
	})
	return p
}

// wait gives the exit status.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.status
	case <-time.After(patience):
		p.t.Fatalf("the program does not end:\n%s", p.err)
		return 0
	}
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// address waits until the server says where it is.
func (p *program) address() string {
	p.t.Helper()
	line := p.out.wait(p.t, "Krater serves", p.done)
	_, rest, _ := strings.Cut(line, " on ")
	address, _, _ := strings.Cut(rest, " ")
	return address
}

// execute runs the program to its end.
func execute(t testing.TB, in string, args ...string) outcome {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = programEnv()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	status := 0
	switch {
	case errors.As(err, &exit):
		status = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return outcome{status, out.String(), errs.String()}
}
