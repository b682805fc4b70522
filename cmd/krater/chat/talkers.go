package chat

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"krater/actors"
	"krater/actors/engine"
	"krater/cmd/krater/remote"
	"krater/transport/api"
	"krater/transport/client"
)

// Local uses an engine in this process.
type Local struct {
	Gateway *actors.Gateway
	Flags   *Sampling
}

// Ask implements Talker.
func (t *Local) Ask(ctx context.Context, messages []client.Message, show func(string) error) (End, error) {
	data, err := json.Marshal(messages)
	if err != nil {
		return End{}, err
	}
	req := t.Flags.Request("chat", t.Gateway.Info())
	req.Prompt.Chat = &engine.Chat{Messages: data}
	stream, err := t.Gateway.Submit(ctx, req)
	if err != nil {
		return End{}, err
	}
	defer stream.Close()
	done, err := Follow(stream, func(ev *engine.Event) error { return show(ev.Text) })
	r := End{prompt: done.Usage.Prompt, cached: done.Usage.Cached, tokens: done.Usage.Completion, cut: done.Finish == engine.FinishLength}
	r.cancelled = done.Finish == engine.FinishCancelled
	return r, err
}

// Follow passes on the events of an answer and returns the last one.
func Follow(stream engine.Stream, see func(*engine.Event) error) (engine.Event, error) {
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

// OfServer rewords an error that names --url, a flag that krater chat calls --server.
func OfServer(err error) error {
	return errors.New(strings.Replace(err.Error(), "--url", "--server", 1))
}

// Remote uses a running server.
type Remote struct {
	Client *client.Client
	Server *remote.Server
	Flags  *Sampling
	Model  string
}

// Ask implements Talker.
func (t *Remote) Ask(ctx context.Context, messages []client.Message, show func(string) error) (r End, err error) {
	usage := true
	req := api.ChatRequest{Messages: client.Messages(messages...), StreamOptions: &api.StreamOptions{IncludeUsage: &usage}, Sampling: t.Flags.wire()}
	req.SeparateReasoning = new(bool) // it is shown, as with a model in this process
	if t.Model != "" {
		req.Model = &t.Model
	}
	if t.Flags.MaxTokens > 0 {
		req.MaxCompletionTokens = &t.Flags.MaxTokens
	}
	stream, err := t.Client.ChatStream(ctx, req)
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
	if _, ok := errors.AsType[*api.Error](err); ok { // its message is complete
		return r, err
	}
	return r, OfServer(t.Server.Plainly(err))
}

// read shows a stream until io.EOF.
func (r *End) read(stream *client.Stream[api.ChatChunk], show func(string) error) error {
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
