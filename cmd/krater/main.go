// Command krater serves large mixture-of-experts language models on one
// machine. Run `krater --help` for its commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"krater/cmd/krater/batch"
	"krater/cmd/krater/benches"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/cmd/krater/traces"
	"krater/scheduler/files"
)

// cli is every command with its flags. A flag's name is also its name in the
// configuration file; KRATER_ and the name in capitals is its variable. The help lists commands by
// groups, in this order.
type cli struct {
	Config string `help:"YAML file of settings, one 'flag-name: value' a line." type:"path" placeholder:"FILE"`

	Launch launchCmd `cmd:"" group:"Start" help:"Choose model, device, precision and strategy on the terminal, save the settings, start."`
	Serve  serveCmd  `cmd:"" group:"Start" help:"Serve the model over HTTP and WebSocket."`
	Run    runCmd    `cmd:"" group:"Start" help:"Ask one question on the terminal."`
	Chat   chatCmd   `cmd:"" group:"Start" help:"Talk with a model on the terminal."`

	Batch batch.Cmd  `cmd:"" group:"Use a running server" help:"Submit, watch, fetch and cancel batches of a running server."`
	Trace traces.Cmd `cmd:"" group:"Use a running server" help:"Record what a running server's actors do, and show it."`

	Doctor  doctorCmd  `cmd:"" group:"Check" help:"Check this machine and the memory a model needs, without loading it."`
	Plan    planCmd    `cmd:"" group:"Check" help:"Predict every dispatch strategy on a card, described or present, from the model's config alone."`
	Compare compareCmd `cmd:"" group:"Check" help:"Compare the engine operator by operator with golden vectors."`
	Ppl     pplCmd     `cmd:"" group:"Check" help:"Measure perplexity of a text."`

	Bench   benches.Cmd `cmd:"" group:"Measure" help:"Measure this machine and the engine."`
	Heatmap heatmapCmd  `cmd:"" group:"Measure" help:"Count how often the router chooses each expert; save, add up, print and draw such maps."`

	Convert convertCmd `cmd:"" group:"Make models" help:"Convert a model's experts ahead of the first start."`
	Synth   synthCmd   `cmd:"" group:"Make models" help:"Make a model of a real shape with random weights."`

	Tokenize   tokenizeCmd   `cmd:"" group:"Tools" help:"Lines of base64 text in, a JSON list of ids a line out."`
	Detokenize detokenizeCmd `cmd:"" group:"Tools" help:"JSON lists of ids in, a JSON string a line out."`
	Template   templateCmd   `cmd:"" group:"Tools" help:"Render chat templates: a JSON object a line in, a JSON string a line out."`
	Completion completionCmd `cmd:"" group:"Tools" help:"Print a script that completes commands and flags in a shell."`
	Version    versionCmd    `cmd:"" group:"Tools" help:"Print version and licences."`
	Help       helpCmd       `cmd:"" group:"Tools" help:"Show the page of a command."`
}

func main() {
	e := &console.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(run(os.Args[1:], e))
}

// run executes one command line and returns the exit status: 0 fine, 1 failed,
// 2 misused.
func run(args []string, e *console.Env) int {
	var c cli
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case len(args) == 1 && (args[0] == "--version" || args[0] == "-v"): // as other programs have it
		args = []string{"version"}
	}
	ctx, file, err := cmdline.Parse(&c, args, kong.Writers(e.Out, e.Err))
	if err != nil {
		complain(e.Err, err)
		return 2
	}
	e.Ctx, e.File = ctx, file
	if ctx.Command() != "serve" || c.Serve.PrintConfig { // a server has a log
		for _, line := range cmdline.Strangers(ctx.Model, os.Environ()) {
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

// complain writes an error. Errors quote foreign text: names of files and tensors, templates, what
// a server said.
func complain(w io.Writer, err error) { fmt.Fprintln(w, "krater:", term.Shown(err.Error())) }
