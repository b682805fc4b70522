// Command krater serves large mixture-of-experts language models on one machine. Run `krater
// --help` for its commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"krater/cmd/krater/batch"
	"krater/cmd/krater/benches"
	"krater/cmd/krater/cluster"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/fetch"
	"krater/cmd/krater/term"
	"krater/cmd/krater/traces"
	"krater/scheduler/files"
)

// cli is every command with its flags. A flag's name is also its name in the configuration file,
// and KRATER_ with the name in capitals is its environment variable. The help lists commands by
// group, in this order.
type cli struct {
	Config string `help:"YAML file of settings, one 'flag-name: value' per line." type:"path" placeholder:"FILE"`

	Setup  setupCmd  `cmd:"" group:"Start" help:"Choose a model and its settings on the terminal, save them, and start."`
	Launch launchCmd `cmd:"" group:"Start" help:"Start a coding agent that uses this server: claude, codex, opencode or aider."`
	Serve  serveCmd  `cmd:"" group:"Start" help:"Serve a model over HTTP and WebSocket."`
	Run    runCmd    `cmd:"" group:"Start" help:"Ask one question on the terminal."`
	Chat   chatCmd   `cmd:"" group:"Start" help:"Talk with a model on the terminal."`

	Pull   fetch.PullCmd   `cmd:"" group:"Models" help:"Download a model from a hub."`
	Models fetch.ModelsCmd `cmd:"" group:"Models" help:"List the models that are here, and whether they fit this machine."`

	Worker cluster.WorkerCmd `cmd:"" group:"Several machines" help:"Compute some layers of a model for a server on another machine."`
	Certs  cluster.CertsCmd  `cmd:"" group:"Several machines" help:"Make the certificates by which members of a cluster know each other."`

	Batch batch.Cmd  `cmd:"" group:"Use a running server" help:"Submit, watch, fetch and cancel batches of a running server."`
	Trace traces.Cmd `cmd:"" group:"Use a running server" help:"Record what a running server's actors do, and show it."`

	Doctor  doctorCmd  `cmd:"" group:"Check" help:"Check this machine, and whether a model fits, without loading it."`
	Plan    planCmd    `cmd:"" group:"Check" help:"Predict the speed of every dispatch strategy on a GPU from the model's config."`
	Compare compareCmd `cmd:"" group:"Check" help:"Compare the engine operator by operator with golden vectors."`
	Ppl     pplCmd     `cmd:"" group:"Check" help:"Measure the perplexity of a text."`

	Bench   benches.Cmd `cmd:"" group:"Measure" help:"Measure this machine and the engine."`
	Heatmap heatmapCmd  `cmd:"" group:"Measure" help:"Count how often the router chooses each expert; add, print and draw such heat maps."`

	Convert convertCmd `cmd:"" group:"Make models" help:"Convert a model's experts before the first start."`
	Synth   synthCmd   `cmd:"" group:"Make models" help:"Make a model with random weights in the shape of a known model."`

	Tokenize   tokenizeCmd   `cmd:"" group:"Tools" help:"Read lines of base64 text and print the token ids of each as a JSON list."`
	Detokenize detokenizeCmd `cmd:"" group:"Tools" help:"Read JSON lists of token ids and print the text of each as a JSON string."`
	Template   templateCmd   `cmd:"" group:"Tools" help:"Render a chat template for each JSON object of the input."`
	Completion completionCmd `cmd:"" group:"Tools" help:"Print a shell script that completes commands and flags."`
	Version    versionCmd    `cmd:"" group:"Tools" help:"Print version and licences."`
	Help       helpCmd       `cmd:"" group:"Tools" help:"Show the page of a command."`
}

func main() {
	e := &console.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(run(os.Args[1:], e))
}

// run executes one command line and returns the exit status: 0 fine, 1 failed, 2 misused.
func run(args []string, e *console.Env) int {
	var c cli
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case len(args) == 1 && (args[0] == "--version" || args[0] == "-v"): // as in other programs
		args = []string{"version"}
	}
	ctx, file, err := cmdline.Parse(&c, c.Launch.Cut(args), kong.Writers(e.Out, e.Err))
	if err != nil {
		complain(e.Err, err)
		return 2
	}
	e.Ctx, e.File = ctx, file
	if ctx.Command() != "serve" || c.Serve.PrintConfig { // a server uses its log
		for _, line := range cmdline.UnknownVariables(cmdline.All(&c), os.Environ()) {
			fmt.Fprintln(e.Err, "krater:", line)
		}
	}
	err = files.Guard(func() error { return ctx.Run(e) })
	e.Shown().End()
	var status console.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	complain(e.Err, err)
	return 1
}

// complain writes an error. Errors quote foreign text: names of files and tensors, templates,
// answers of a server.
func complain(w io.Writer, err error) { fmt.Fprintln(w, "krater:", term.Shown(err.Error())) }
