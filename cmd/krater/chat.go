package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/cmd/krater/term"
	"krater/transport/api"
	"krater/transport/client"
)

type chatCmd struct {
	modelFlag
	synthFlags
	engineFlags
	samplingFlags
	System  string `help:"A system text before the conversation." placeholder:"TEXT"`
	Server  string `help:"Talk with a running server instead of loading a model." placeholder:"URL"`
	APIKey  string `name:"api-key" help:"A key, if the server asks for one; better as KRATER_API_KEY, where other users do not see it." placeholder:"KEY"`
	History bool   `help:"Keep the lines that are typed, for the arrow keys, in a file that only you can read." default:"true" negatable:""`
}

// Run implements the command.
func (c *chatCmd) Run(e *env) error {
	in, inOK := e.in.(*os.File)
	out, outOK := e.out.(*os.File)
	if !inOK || !outOK || !term.Is(in) || !term.Is(out) {
		return errors.New(`chat needs a terminal; krater run "..." asks one question`)
	}
	if err := c.samplingFlags.check(); err != nil {
		return err
	}
	talk := &conversation{out: e.out, most: c.MaxTokens, system: c.System}
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
	talk.lines = term.NewLines(in, out, c.history(e))
	return talk.run()
}

// history is the file of the lines typed before; nil where there is to be none.
func (c *chatCmd) history(e *env) *term.History {
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
	e.say("lines are not kept:", err)
	return nil
}

// local loads the model and has it talk.
func (c *chatCmd) local(e *env, talk *conversation) (end func(), err error) {
	c.MaxSeqs, c.MaxQueue = 1, 1 // one conversation needs one sequence
	src, err := c.sourceOr(c.Model)
	if err != nil {
		return nil, err
	}
	s, err := newSourceSession(e, src, &c.engineFlags, limits{served: true})
	if err != nil {
		return nil, err
	}
	p, err := s.pipeline(&c.engineFlags, zerolog.New(e.err).Level(zerolog.WarnLevel))
	if err != nil {
		s.Close()
		return nil, err
	}
	end = func() {
		p.Close()
		s.Close()
	}
	g, err := s.gateway(&c.engineFlags, p, "")
	if err == nil {
		_, err = g.Render(context.Background(), &engine.Chat{Messages: client.Messages(client.Message{Role: "user", Content: "hello"})})
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("%w; krater run --raw continues a text", err)
	}
	talk.talker, talk.name, talk.context = &localTalker{g, &c.samplingFlags}, g.Info().ID, g.Info().Context
	return end, nil
}

// localTalker is the engine in this process.
type localTalker struct {
	gateway *actors.Gateway
	flags   *samplingFlags
}

// Ask implements talker.
func (t *localTalker) Ask(ctx context.Context, messages []client.Message, show func(string) error) (chatEnd, error) {
	data, err := json.Marshal(messages)
	if err != nil {
		return chatEnd{}, err
	}
	req := t.flags.request("chat", t.gateway.Info())
	req.Prompt.Chat = &engine.Chat{Messages: data}
	stream, err := t.gateway.Submit(ctx, req)
	if err != nil {
		return chatEnd{}, err
	}
	defer stream.Close()
	done, err := follow(stream, func(ev *engine.Event) error { return show(ev.Text) })
	r := chatEnd{prompt: done.Usage.Prompt, cached: done.Usage.Cached, tokens: done.Usage.Completion, cut: done.Finish == engine.FinishLength}
	r.cancelled = done.Finish == engine.FinishCancelled
	return r, err
}

// follow passes on the events of an answer and gives the last one.
func follow(stream engine.Stream, see func(*engine.Event) error) (engine.Event, error) {
	for {
		ev, err := stream.Next(context.Background())
		if err != nil {
			return ev, err
		}
		if err := see(&ev); err != nil {
			return ev, err
		}
		switch ev.Kind {
		case engine.Failed:
			return ev, ev.Err
		case engine.Done:
			return ev, nil
		}
	}
}

// remote has a running server talk.
func (c *chatCmd) remote(talk *conversation) error {
	switch {
	case c.Model != "" || c.Shape != "":
		return errors.New("--server: its model is loaded; leave --model and --shape away")
	}
	f := remoteFlags{URL: c.Server, APIKey: c.APIKey}
	cl, ctx, stop, err := f.session()
	if err != nil {
		return ofServer(err)
	}
	defer stop()
	list, err := cl.Models(ctx)
	if err != nil {
		return ofServer(f.plainly(err))
	}
	if len(list.Data) > 0 {
		talk.name, talk.context = list.Data[0].ID, list.Data[0].MaxModelLen
	}
	talk.talker = &remoteTalker{cl, &f, &c.samplingFlags, talk.name}
	return nil
}

// ofServer has an error name the flag that is --url in other commands.
func ofServer(err error) error {
	return errors.New(strings.Replace(err.Error(), "--url", "--server", 1))
}

// remoteTalker is a server.
type remoteTalker struct {
	client *client.Client
	remote *remoteFlags
	flags  *samplingFlags
	model  string
}

// Ask implements talker.
func (t *remoteTalker) Ask(ctx context.Context, messages []client.Message, show func(string) error) (r chatEnd, err error) {
	usage := true
	req := api.ChatRequest{Messages: client.Messages(messages...), StreamOptions: &api.StreamOptions{IncludeUsage: &usage}, Sampling: t.flags.wire()}
	if t.model != "" {
		req.Model = &t.model
	}
	if t.flags.MaxTokens > 0 {
		req.MaxCompletionTokens = &t.flags.MaxTokens
	}
	stream, err := t.client.ChatStream(ctx, req)
	if err == nil {
		defer stream.Close()
		err = r.read(stream, show)
	}
	switch {
	case errors.Is(err, io.EOF):
		return r, nil
	case ctx.Err() != nil:
		r.cancelled = true
		return r, nil
	}
	if _, ok := errors.AsType[*api.Error](err); ok { // says what it is
		return r, err
	}
	return r, ofServer(t.remote.plainly(err))
}

// read shows a stream up to its end, io.EOF.
func (r *chatEnd) read(stream *client.Stream[api.ChatChunk], show func(string) error) error {
	for {
		chunk, err := stream.Next()
		if err != nil {
			return err
		}
		if u := chunk.Usage.Value; u != nil {
			r.prompt, r.cached, r.tokens = u.PromptTokens, u.PromptDetails.CachedTokens, u.CompletionTokens
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != nil {
				if err := show(*c.Delta.Content); err != nil {
					return err
				}
			}
			r.cut = r.cut || c.FinishReason != nil && *c.FinishReason == "length"
		}
	}
}
