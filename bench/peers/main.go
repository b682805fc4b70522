// Command peers compares Krater with llama.cpp, for bench/peers/llama.sh. It makes a model of
// DeepSeek-V2-Lite's shape in the peer's format, counts the available cores, and compares both
// programs' figures.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"

	"krater/bench/cores"
)

const usage = `usage:
  peers gguf --out FILE [--type q4_0|q4_k] [--experts 64]  write a model of random weights
  peers regime [--threads N]                                the cores that are there now
  peers join [--json] --ours A.json,... --theirs B.json,... compare figures
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
	case "gguf":
		path := flags.String("out", "", "file to write")
		kind := flags.String("type", "q4_0", "q4_0 or q4_k")
		experts := flags.Int("experts", liteMoE, "experts of a layer: fewer make a smaller file of which a token reads as much")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return gguf(*path, *kind, *experts, out)
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
	}
	return errors.New(usage)
}

// gguf writes a model and prints its sizes.
func gguf(path, kind string, experts int, out io.Writer) error {
	if path == "" {
		return errors.New("gguf: --out names the file")
	}
	m, err := lite(kind, experts)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = m.write(w); err == nil {
		err = w.Flush()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %.3f GB, %.4f GB of weights a decoded token\n", path, float64(m.bytes())/1e9, float64(m.tokenBytes())/1e9)
	return err
}
