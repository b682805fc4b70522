// Command lint checks the rules of this code base that a compiler does not check. They are about
// imports, lengths of files and functions, phrases, commit messages, and counts that the design
// keeps low. It prints the counts and fails for each fault.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 1:
		err = check(os.Stdout)
	case len(os.Args) == 2 && slices.Contains([]string{"race", "race-nightly", "plain"}, os.Args[1]):
		err = listTests(os.Stdout, os.Args[1])
	default:
		err = fmt.Errorf("usage: lint [race|race-nightly|plain]")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(1)
	}
}

// check prints the counts and the faults of the repository in the working directory.
func check(out io.Writer) error {
	faults := 0
	report := func(found []string, err error) error {
		for _, f := range found {
			fmt.Fprintln(out, f)
		}
		faults += len(found)
		return err
	}
	counts := map[string]int{}
	for _, rule := range []func() ([]string, error){
		importFaults,
		func() ([]string, error) { return sourceFaults(counts) },
		func() ([]string, error) { return typeCounts(counts) },
		commitFaults,
	} {
		if err := report(rule()); err != nil {
			return err
		}
	}
	lines, found := judge(limits, counts)
	fmt.Fprint(out, strings.Join(lines, ""))
	for name := range exceptions {
		if counts[name] == 0 {
			fmt.Fprintf(out, "%s is short enough now; remove its exception from cmd/lint\n", name)
		}
	}
	report(found, nil)
	if faults > 0 {
		return fmt.Errorf("%d faults", faults)
	}
	return nil
}

// command returns what a command prints to its standard output.
func command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaint.String())
	}
	return string(out), nil
}
