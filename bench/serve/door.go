package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"krater/transport/api"
	"krater/transport/client"
)

// Doors are the names that Open accepts.
var Doors = []string{"completions", "chat", "websocket"}

// codeRateLimit is the code of a failed response that corresponds to a 429.
const codeRateLimit = "rate_limit_exceeded"

// Asking has the settings of every request.
type Asking struct {
	Model    string // "": the served model
	Seed     int64  // for the server's sampling; requests differ by their number
	Greedy   bool   // the most likely token always, instead of the model's defaults
	Logprobs bool   // ask for log-probabilities, so that tokens of chunks can be counted
}

// Door is one API of a server. It is safe for concurrent use.
type Door interface {
	// Name is the name for Open.
	Name() string
	// Chat reports whether it takes messages instead of token ids.
	Chat() bool
	// ask sends a and reports events to w. It returns when the answer is complete, with the
	// server's counts, or when w or ctx ends it; the connection is then dropped.
	ask(ctx context.Context, a *Ask, w *watch) (counts, error)
	// Close closes idle connections.
	Close()
}

// counts are tokens as the server counted them.
type counts struct{ prompt, cached, answer int }

// errLeft ends a client that left on purpose.
var errLeft = errors.New("the client has left")

// watch is the client's view of its answer.
type watch struct {
	ask    *Ask
	sent   time.Time
	begun  time.Time // when the server reported it
	pieces []piece
	tokens int // at least
}

func (w *watch) started() {
	if w.begun.IsZero() {
		w.begun = time.Now()
	}
}

// piece records text and returns errLeft when the client leaves.
func (w *watch) piece(bytes, tokens int) error {
	w.pieces = append(w.pieces, piece{time.Now(), bytes, tokens})
	if w.tokens += max(1, tokens); w.ask.Fault != NoFault && w.tokens >= w.ask.Leave {
		return errLeft
	}
	return nil
}

// Open returns the door with this name to a server. hc may be nil; see Transport.
func Open(name, url, key string, hc *http.Client, a Asking) (Door, error) {
	c := client.New(url, key, hc)
	switch name {
	case "completions":
		return &textDoor{streams{c, a, hc}}, nil
	case "chat":
		return &chatDoor{streams{c, a, hc}}, nil
	case "websocket":
		return &socketDoor{client: c, asking: a}, nil
	}
	return nil, fmt.Errorf("door %q: want one of %s", name, strings.Join(Doors, ", "))
}

// Transport returns an HTTP client for the given number of streams at a time: each is a connection.
func Transport(streams int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConns: streams, MaxIdleConnsPerHost: streams, IdleConnTimeout: 30 * time.Second,
		WriteBufferSize: 2048, ReadBufferSize: 2048,
	}}
}

// streams is the common part of the doors with server-sent events.
type streams struct {
	client *client.Client
	asking Asking
	http   *http.Client
}

// Close implements Door.
func (s *streams) Close() {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
}

func (a *Asking) sampling(ask *Ask) api.Sampling {
	on := true
	seed := a.Seed + int64(ask.Talk)<<16 + int64(ask.Turn)
	s := api.Sampling{IgnoreEOS: &on, Seed: &seed}
	if a.Greedy {
		s.Temperature = new(float64)
	}
	return s
}

func (a *Asking) model() *string {
	if a.Model == "" {
		return nil
	}
	return &a.Model
}

func usageOf(u *api.Usage) counts {
	return counts{u.PromptTokens, u.PromptDetails.CachedTokens, u.CompletionTokens}
}

// errNoUsage is for a stream that ends without usage.
var errNoUsage = fmt.Errorf("the stream ends without usage: %w", io.ErrUnexpectedEOF)

func withUsage() *api.StreamOptions {
	on := true
	return &api.StreamOptions{IncludeUsage: &on}
}

type textDoor struct{ streams }

// Name implements Door.
func (d *textDoor) Name() string { return "completions" }

// Chat implements Door.
func (d *textDoor) Chat() bool { return false }

func (d *textDoor) ask(ctx context.Context, a *Ask, w *watch) (counts, error) {
	req := api.CompletionRequest{
		Sampling: d.asking.sampling(a), Model: d.asking.model(), Prompt: api.Prompts{IDs: [][]int32{a.IDs}},
		MaxTokens: &a.Max, StreamOptions: withUsage(),
	}
	if d.asking.Logprobs {
		req.Logprobs = new(int)
	}
	ctx, drop := context.WithCancel(ctx)
	defer drop()
	s, err := d.client.CompleteStream(ctx, req)
	if err != nil {
		return counts{}, err
	}
	defer s.Close()
	return follow(s.Next, drop, func(e *api.TextCompletion) (int, int, *api.Usage) {
		text, tokens := 0, 0
		for _, c := range e.Choices {
			if text += len(c.Text); c.Logprobs != nil {
				tokens += len(c.Logprobs.Tokens)
			}
		}
		return text, tokens, e.Usage.Value
	}, w)
}

type chatDoor struct{ streams }

// Name implements Door.
func (d *chatDoor) Name() string { return "chat" }

// Chat implements Door.
func (d *chatDoor) Chat() bool { return true }

func (d *chatDoor) ask(ctx context.Context, a *Ask, w *watch) (counts, error) {
	req := api.ChatRequest{
		Sampling: d.asking.sampling(a), Model: d.asking.model(), Messages: client.Messages(a.Messages...),
		MaxTokens: &a.Max, StreamOptions: withUsage(),
	}
	if d.asking.Logprobs {
		on := true
		req.Logprobs = &on
	}
	ctx, drop := context.WithCancel(ctx)
	defer drop()
	s, err := d.client.ChatStream(ctx, req)
	if err != nil {
		return counts{}, err
	}
	defer s.Close()
	return follow(s.Next, drop, func(e *api.ChatChunk) (int, int, *api.Usage) {
		text, tokens := 0, 0
		for _, c := range e.Choices {
			for _, s := range []*string{c.Delta.Content, c.Delta.ReasoningContent} {
				if s != nil {
					text += len(*s)
				}
			}
			if c.Logprobs != nil {
				tokens += len(c.Logprobs.Content)
			}
		}
		return text, tokens, e.Usage.Value
	}, w)
}

// follow reads a stream of server-sent events to its end. If it ends otherwise, it drops the
// connection; a plain Close might read on to reuse it.
func follow[T any](next func() (*T, error), drop func(), look func(*T) (text, tokens int, u *api.Usage), w *watch) (_ counts, err error) {
	defer func() {
		if err != nil {
			drop()
		}
	}()
	var got *counts
	for {
		e, err := next()
		if errors.Is(err, io.EOF) {
			if got == nil {
				return counts{}, errNoUsage
			}
			return *got, nil
		}
		if err != nil {
			return counts{}, err
		}
		text, tokens, u := look(e)
		if u != nil {
			c := usageOf(u)
			got = &c
		}
		if text > 0 || tokens > 0 {
			if err := w.piece(text, tokens); err != nil {
				return counts{}, err
			}
		}
	}
}
