package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"krater/cmd/krater/cmdline"
)

// arguments splits an example's line as a shell does, quotes in double ones only.
func arguments(line string) []string {
	var args []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}

// exampleFiles makes a folder with the files that the examples name, and goes there.
func exampleFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"models/DeepSeek-V2-Lite", "dump"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"keys.txt", "krater.yaml", "prompt.txt", "README.md", "heldout.txt", "text.txt", "monday.json", "tuesday.json", "requests.jsonl", "step.json"} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryCommandHasAPage: all commands have examples, every example is a command line of the
// command that it stands at, and there is no page of a command that does not exist.
func TestEveryCommandHasAPage(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cmdline.Completions(cmdline.All(&cli{}).Node) {
		seen[c.Path] = true
		if len(cmdline.Pages[c.Path].Examples) == 0 {
			t.Errorf("%q has no example", c.Path)
		}
	}
	exampleFiles(t)
	for path, p := range cmdline.Pages {
		if !seen[path] {
			t.Errorf("there is no command %q", path)
		}
		for _, e := range p.Examples {
			args := arguments(e.Line)
			if args[0] != "krater" || !strings.HasPrefix(strings.Join(args[1:], " "), path) || e.What == "" {
				t.Errorf("%q: example %q", path, e.Line)
			}
			for i, a := range args {
				if strings.HasPrefix(a, "/models") {
					args[i] = "." + a
				}
			}
			var c cli
			if _, _, err := cmdline.Parse(&c, args[1:]); err != nil {
				t.Errorf("%q: %v", e.Line, err)
			}
		}
	}
}

func TestHelpIsAPage(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"bench", "--help"}, {"bench", "kernels", "--help"}, {"run", "--help"}} {
		out := execute(t, "", args...).out
		at := -1
		for _, section := range []string{"NAME\n  krater", "\nSYNOPSIS\n  krater", "\nOPTIONS\n  ", "\nEXAMPLES\n  "} {
			next := strings.Index(out, section)
			if next <= at {
				t.Errorf("%v: %q is not there, or out of order:\n%s", args, section, out)
			}
			at = next
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%v: colours where there is no terminal", args)
		}
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "    krater ") && len([]rune(strings.TrimRight(line, "\n"))) > 80 {
				t.Errorf("%v: over 80 columns: %q", args, line)
			}
		}
	}
}

// TestHelpGroupsCommands: every command of the program is in a group, and a group is there once.
func TestHelpGroupsCommands(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	_, list, _ := strings.Cut(execute(t, "", "help").out, "\nCOMMANDS\n")
	list, _, _ = strings.Cut(list, "\nOPTIONS\n")
	groups := map[string][]string{}
	group := ""
	for line := range strings.Lines(list) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "" || strings.HasPrefix(line, "   "): // the text of a command goes on
		case strings.HasPrefix(line, "  "):
			groups[group] = append(groups[group], strings.Fields(line)[0])
		default:
			if group = strings.TrimSpace(line); groups[group] != nil {
				t.Errorf("the group %q is there twice", group)
			}
		}
	}
	for group, first := range map[string]string{"Start": "setup", "Check": "doctor", "Measure": "bench", "Tools": "tokenize"} {
		if len(groups[group]) == 0 || groups[group][0] != first {
			t.Errorf("the group %q has %q", group, groups[group])
		}
	}
	if len(groups[""]) > 0 {
		t.Errorf("%q are in no group", groups[""])
	}
}

func TestHelpAsACommand(t *testing.T) {
	for _, of := range [][]string{nil, {"serve"}, {"bench", "kernels"}, {"help"}} {
		command, flag := execute(t, "", append([]string{"help"}, of...)...), execute(t, "", append(of, "--help")...)
		if command.status != 0 || command.out != flag.out || command.out == "" {
			t.Errorf("help %v: status %d\n%s", of, command.status, command.out)
		}
	}
}

// TestBashCompletesPaths: in a real line of a shell the folder is gone into, and names may have blanks.
func TestBashCompletesPaths(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	for _, name := range []string{"my models/lite", "keys"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "completion")
	if err := os.WriteFile(script, []byte(execute(t, "", "completion", "bash").out), 0o644); err != nil {
		t.Fatal(err)
	}
	// Typed: what a tab makes of it is run, and says what it was given.
	end, tty := openTerminal(t, 80, 24)
	cmd := exec.Command(bash, "--norc", "-i")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TERM=dumb", "PS1=$ ", "HISTFILE=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	var shown screen
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&shown, end) // until the shell has ended
	}()
	if _, err := io.WriteString(end, "source ./completion; krater() { printf '<%s>' \"$@\"; }\nkrater serve --model my\tli\t\nexit\n"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // with the status of the last command
	<-read
	if want := "<serve><--model><my models/lite/>"; !strings.Contains(shown.String(), want) {
		t.Errorf("%s is not what the line became:\n%s", want, shown.String())
	}
}

// TestBashCompletes runs the script in the shell that it is for.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	script := execute(t, "", "completion", "bash").out
	for _, c := range []struct {
		line string // the last word is completed
		want []string
		not  []string
	}{
		{"krater ", []string{"serve", "bench", "--config", "--help"}, []string{"--listen", "kernels"}},
		{"krater ser", []string{"serve"}, []string{"bench"}},
		{"krater serve --li", []string{"--listen"}, []string{"--log-level"}},
		{"krater serve --log-level ", []string{"debug", "info", "warn", "error"}, []string{"--listen", "serve"}},
		{"krater serve --log-level = w", []string{"warn"}, []string{"info"}}, // readline cuts at the sign
		{"krater bench ", []string{"kernels", "model", "serve", "--actors-vs-direct"}, []string{"setup"}},
		{"krater bench serve --li", nil, []string{"--listen"}}, // no flag of krater serve
		{"krater bench kernels --pl", []string{"--plot"}, []string{"--listen"}},
		{"krater serve --model /models/x --dev", []string{"--device"}, nil},
		{"krater completion ", []string{"bash", "zsh", "fish"}, nil},
		{"krater compare --golden /et", []string{"/etc"}, nil},
	} {
		words := strings.Split(c.line, " ")
		quoted := "'" + strings.Join(words, "' '") + "'"
		cmd := exec.Command(bash, "--norc", "-c", script+"\nCOMP_WORDS=("+quoted+")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_krater\nprintf '%s\\n' \"${COMPREPLY[@]}\"")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || errs.Len() > 0 {
			t.Fatalf("%q: %v %s", c.line, err, errs.String())
		}
		got := strings.Fields(string(out))
		for _, w := range c.want {
			if !slices.Contains(got, w) {
				t.Errorf("%q: %s is not among %v", c.line, w, got)
			}
		}
		for _, w := range c.not {
			if slices.Contains(got, w) {
				t.Errorf("%q: %s is among %v", c.line, w, got)
			}
		}
	}
}

// TestOtherShellsReadTheirScripts where they are installed.
func TestOtherShellsReadTheirScripts(t *testing.T) {
	for shell, try := range map[string]struct {
		args, want []string
	}{
		"zsh":  {[]string{"-f", "-c", "autoload -U compinit && compinit -D; source /dev/stdin; print -- ${_comps[krater]}"}, []string{"_krater"}},
		"fish": {[]string{"--no-config", "-c", "source -; complete -C 'krater bench ker'; complete -C 'krater serve --log-level w'; complete -C 'krater serve --listen'; complete -C 'krater bench serve --swe'"}, []string{"kernels", "warn", "--listen", "--sweep"}},
	} {
		script := execute(t, "", "completion", shell).out
		if !strings.Contains(script, "krater") {
			t.Errorf("%s: %q", shell, script)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("no %s here", shell)
			continue
		}
		cmd := exec.Command(path, try.args...)
		cmd.Stdin = strings.NewReader(script)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		for _, w := range try.want {
			if err != nil || !strings.Contains(string(out), w) {
				t.Errorf("%s: %v, %q has no %s", shell, err, out, w)
			}
		}
	}
}
