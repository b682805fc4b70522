package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// agentScript is an agent: it asks the server that it was given, and prints its arguments.
const agentScript = `#!/bin/sh
echo "args: $*"
echo "variables: $ANTHROPIC_BASE_URL $ANTHROPIC_MODEL $OPENAI_API_BASE"
exit 7
`

// launched runs krater launch with a folder of programs as PATH.
func launched(t *testing.T, programs string, args ...string) (out string, status int) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"launch"}, args...)...)
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), asProgram+"=1", "PATH="+programs, "TMPDIR="+c.Dir)
	text, err := c.CombinedOutput()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "krater-serve-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	return string(text), c.ProcessState.ExitCode()
}

// freePort returns an address that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestLaunchAgents starts agents, with a server of their own and with one that runs.
func TestLaunchAgents(t *testing.T) {
	programs := t.TempDir()
	for _, name := range []string{"claude", "aider"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte(agentScript), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listen := freePort(t)
	out, status := launched(t, programs, "claude", "--listen", listen, "--", "--resume", "a b")
	want := fmt.Sprintf("args: --resume a b\nvariables: http://%s krater-tiny \n", listen)
	if status != 7 || !strings.Contains(out, "starting krater serve --listen "+listen) || !strings.HasSuffix(out, want) {
		t.Errorf("a server of its own: status %d\n%s", status, out)
	}
	if _, err := net.Dial("tcp", listen); err == nil {
		t.Error("the server was left behind")
	}

	listen = strings.TrimPrefix(open(t).base, "http://")
	out, status = launched(t, programs, "aider", "--listen", listen)
	want = fmt.Sprintf("args: --model openai/krater-tiny --no-show-model-warnings\nvariables:   http://%s/v1\n", listen)
	if status != 7 || strings.Contains(out, "starting") || !strings.HasSuffix(out, want) {
		t.Errorf("a server that runs: status %d\n%s", status, out)
	}

	for want, args := range map[string][]string{
		"acme/none is neither an agent (claude, codex, opencode, aider) nor a folder":                     {"acme/none"},
		"unexpected argument x: arguments of claude come after --":                                        {"claude", "x"},
		"codex is not installed: no program codex in PATH; install it with: npm install -g @openai/codex": {"codex"},
		"the server ended before it was ready":                                                            {"claude", "--listen", freePort(t), "--model", "none"},
		"none: no such file or folder":                                                                    {"claude", "--listen", freePort(t), "--model", "none"},
	} {
		if out, status := launched(t, programs, args...); status != 1 || !strings.Contains(out, want) {
			t.Errorf("launch %v: status %d\n%s", args, status, out)
		}
	}
}
