package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"krater/actors/engine"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/chat"
	"krater/cmd/krater/console"
	"krater/cmd/krater/remote"
	"krater/cmd/krater/term"
	"krater/stages/source"
	"krater/transport/client"
)

type chatCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	chat.Sampling
	System  string `help:"System message at the start of the conversation." placeholder:"TEXT"`
	Server  string `help:"Talk with a running server instead of loading a model." placeholder:"URL"`
	APIKey  string `name:"api-key" help:"API key, if the server asks for one. Prefer the variable KRATER_API_KEY, which other users cannot see." placeholder:"KEY"`
	History bool   `help:"Keep the lines that you type, for the arrow keys, in a file that only you can read." default:"true" negatable:""`
}

// Run implements the command.
func (c *chatCmd) Run(e *console.Env) error {
	in, inOK := e.In.(*os.File)
	out, outOK := e.Out.(*os.File)
	if !inOK || !outOK || !term.Is(in) || !term.Is(out) {
		return errors.New(`chat needs a terminal; use krater run "..." for a single question`)
	}
	if err := c.Sampling.Check(); err != nil {
		return err
	}
	talk := &chat.Conversation{Out: e.Out, Most: c.MaxTokens, System: c.System}
	if c.Server != "" {
		if err := c.remote(talk); err != nil {
			return err
		}
	} else {
		end, err := c.local(e, talk)
		if err != nil {
			return err
		}
		defer end()
	}
	talk.Lines = term.NewLines(in, out, c.history(e))
	return talk.Run()
}

// history returns the file of earlier lines; nil if none is kept.
func (c *chatCmd) history(e *console.Env) *term.History {
	if !c.History {
		return nil
	}
	dir, err := stateFolder()
	if err == nil {
		var h *term.History
		if h, err = term.OpenHistory(filepath.Join(dir, "krater", "chat-history")); err == nil {
			return h
		}
	}
	e.Say("the lines you type are not kept:", err)
	return nil
}

// local loads the model for the conversation.
func (c *chatCmd) local(e *console.Env, talk *chat.Conversation) (end func(), err error) {
	c.MaxSeqs, c.MaxQueue = 1, 1 // one conversation needs one sequence
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return nil, err
	}
	g, err := local.Open(context.Background(), console.ForLoad(e, src, c.Options, config.Case{}))
	if err != nil {
		return nil, err
	}
	_, err = g.Render(context.Background(), &engine.Chat{Messages: client.Messages(client.Message{Role: "user", Content: "hello"})})
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("%w; use krater run --raw to continue a text", err)
	}
	talk.Talker, talk.Name, talk.Context = &chat.Local{Gateway: g.Gateway, Flags: &c.Sampling}, g.Info().ID, g.Info().Context
	return func() { g.Close() }, nil
}

// remote connects the conversation to a running server.
func (c *chatCmd) remote(talk *chat.Conversation) error {
	switch {
	case c.Model != "" || c.Shape != "":
		return errors.New("--server: the server has loaded its own model; remove --model and --shape")
	}
	f := remote.Server{URL: c.Server, APIKey: c.APIKey}
	cl, ctx, stop, err := f.Session()
	if err != nil {
		return chat.OfServer(err)
	}
	defer stop()
	list, err := cl.Models(ctx)
	if err != nil {
		return chat.OfServer(f.Plainly(err))
	}
	if len(list.Data) > 0 {
		talk.Name, talk.Context = list.Data[0].ID, list.Data[0].MaxModelLen
	}
	talk.Talker = &chat.Remote{Client: cl, Server: &f, Flags: &c.Sampling, Model: talk.Name}
	return nil
}
