// Command peers compares Krater with llama.cpp, for bench/peers/llama.sh. It counts the available
// cores, compares both programs' figures, and shows several comparisons in one table.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"

	"krater/bench/cores"
)

const usage = `usage:
  peers regime [--threads N]                                the cores that are there now
  peers join [--json] --ours A.json,... --theirs B.json,... compare figures
  peers table NAME=JOINED.json ...                          a Markdown table of comparisons
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "regime":
		threads := flags.Int("threads", runtime.GOMAXPROCS(0), "threads")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		probe, err := cores.New(*threads)
		if err != nil {
			return err
		}
		defer probe.Close()
		look := probe.Take()
		_, err = fmt.Fprintf(out, "%s: one thread %.0f, %d threads %.0f GOP/s\n", look.Regime(), look.One/1e9, look.Threads, look.All/1e9)
		return err
	case "join":
		ours := flags.String("ours", "", "reports of krater bench model --json")
		theirs := flags.String("theirs", "", "reports of llama-bench -o json")
		asJSON := flags.Bool("json", false, "print JSON")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return join(*ours, *theirs, *asJSON, out)
	case "table":
		return table(args[1:], out)
	}
	return errors.New(usage)
}
