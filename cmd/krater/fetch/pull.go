// Package fetch is the commands that bring models here and list those that are here.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/cmd/krater/version"
	"krater/scheduler/planner"
	"krater/stages/source/hubcache"
	"krater/transport/hub"
)

// PullCmd downloads a model.
type PullCmd struct {
	Model     string   `arg:"" help:"ORG/MODEL[:QUANT][@REV]: the model's name on the hub, a quantisation of its GGUF files, a branch, tag or commit."`
	Hub       string   `help:"Address of the hub; default: HF_ENDPOINT, else https://huggingface.co." placeholder:"URL"`
	Include   []string `help:"Files to download instead of the usual ones: names, or patterns with * and ?, which match folders too." placeholder:"PATTERN"`
	Downloads int      `help:"Files downloaded at the same time." default:"8"`
}

// downloadsMost bounds the connections to a hub.
const downloadsMost = 64

// Run implements the command. It prints the path of the model on standard output.
func (c *PullCmd) Run(e *console.Env) error {
	ref, err := hubcache.Parse(c.Model)
	if err != nil {
		return err
	}
	if c.Downloads < 1 || c.Downloads > downloadsMost {
		return fmt.Errorf("--downloads %d: 1 to %d are possible", c.Downloads, downloadsMost)
	}
	cl, err := hub.New(cmp.Or(c.Hub, os.Getenv("HF_ENDPOINT")), hub.UserToken())
	if err != nil {
		return err
	}
	cl.Agent, cl.Parallel = "krater/"+version.This().Version, c.Downloads
	shown := e.Shown()
	cl.Say = func(line string) { e.Say(line) }
	cl.Progress = func(done, all int64) { shown.Set("pull "+ref.Repo, term.Bytes, done, all) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	r, err := cl.Pull(ctx, hubcache.Dir(), ref, c.Include)
	shown.End()
	if errors.Is(err, context.Canceled) {
		e.Say("stopped; the same command goes on from here")
		return console.ExitError(130)
	}
	if err != nil {
		return err
	}
	var all int64
	for _, f := range r.Files {
		all += f.Size
	}
	e.Say(fmt.Sprintf("%s is here: %s, %s, revision %s. Use it with --model %s", ref.Repo, planner.Count(len(r.Files), "file"), planner.Size(all), r.Commit, ref))
	_, err = fmt.Fprintln(e.Out, r.Path)
	return err
}
