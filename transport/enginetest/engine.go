// Package enginetest is an engine.Engine that plays scripts, for tests of the front doors. Its
// tokens are bytes: the id of a byte is its value, 256 is the begin token and 257 the end token.
package enginetest

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"krater/actors/engine"
)

// The token ids beyond the 256 bytes.
const (
	BOS   = 256
	EOS   = 257
	Vocab = 258
)

// Engine plays the script that its chooser returns for each request. The zero value is not usable;
// see New.
type Engine struct {
	mu       sync.Mutex
	info     engine.Info
	ready    error
	chooser  func(*engine.Request) (Script, error)
	requests []*engine.Request
	streams  []*Stream
	open     int
	changed  chan struct{} // closed and replaced whenever open or requests change
	stats    engine.Stats
}

// New makes a ready engine that serves "test-model" with a context of 256 tokens and answers every
// request with "Hello", " world", "!".
func New() *Engine {
	return &Engine{
		info: engine.Info{
			ID: "test-model", Created: time.Unix(1700000000, 0), Context: 256, Vocab: Vocab,
			Defaults: engine.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1},
		},
		chooser: func(*engine.Request) (Script, error) { return Text("Hello", " world", "!"), nil },
		changed: make(chan struct{}),
	}
}

// Play uses this script for every later request.
func (e *Engine) Play(s Script) {
	e.Choose(func(*engine.Request) (Script, error) { return s, nil })
}

// Choose sets the function that picks a request's script or refuses it.
func (e *Engine) Choose(f func(*engine.Request) (Script, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.chooser = f
}

// SetReady sets what Ready and Submit answer; nil is ready.
func (e *Engine) SetReady(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = err
}

// SetInfo changes the model's description.
func (e *Engine) SetInfo(change func(*engine.Info)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.info)
}

// SetStats sets what Stats answers.
func (e *Engine) SetStats(s engine.Stats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats = s
}

// Requests lists the requests accepted so far.
func (e *Engine) Requests() []*engine.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*engine.Request(nil), e.requests...)
}

// Streams lists the streams of the accepted requests, in the same order.
func (e *Engine) Streams() []*Stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Stream(nil), e.streams...)
}

// Open counts the streams that have neither ended nor been closed.
func (e *Engine) Open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}

// WaitOpen blocks until exactly n streams are open.
func (e *Engine) WaitOpen(ctx context.Context, n int) error {
	return e.wait(ctx, func() bool { return e.open == n })
}

// WaitRequests blocks until n requests were accepted.
func (e *Engine) WaitRequests(ctx context.Context, n int) error {
	return e.wait(ctx, func() bool { return len(e.requests) >= n })
}

func (e *Engine) wait(ctx context.Context, done func() bool) error {
	for {
		e.mu.Lock()
		ok, changed := done(), e.changed
		e.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d streams open, %d requests: %w", e.Open(), len(e.Requests()), ctx.Err())
		}
	}
}

// note renews the channel that waiters watch; e.mu is held.
func (e *Engine) note() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// Info implements engine.Engine.
func (e *Engine) Info() engine.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info
}

// Ready implements engine.Engine.
func (e *Engine) Ready() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready
}

// Prefixes implements engine.Engine: two digests for everybody.
func (e *Engine) Prefixes(context.Context, string) (engine.Prefixes, error) {
	return engine.Prefixes{BlockTokens: 4, Digests: []uint64{0xf00, 7}}, e.Ready()
}

// Stats implements engine.Engine.
func (e *Engine) Stats() engine.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Submit implements engine.Engine.
func (e *Engine) Submit(ctx context.Context, req *engine.Request) (engine.Stream, error) {
	if err := e.Ready(); err != nil {
		return nil, err
	}
	ids, err := e.Tokenize(ctx, req.Prompt, math.MaxInt)
	if err != nil {
		return nil, err
	}
	if limit := e.Info().Context; len(ids) > limit {
		return nil, &engine.Error{
			Kind: engine.ContextLength, Param: "messages",
			Message: fmt.Sprintf("the prompt has %d tokens, the context holds %d", len(ids), limit),
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	script, err := e.chooser(req)
	if err != nil {
		return nil, err
	}
	s := newStream(e, script, len(ids))
	s.stop = context.AfterFunc(ctx, s.cancel)
	e.requests = append(e.requests, req)
	e.streams = append(e.streams, s)
	e.open++
	e.note()
	return s, nil
}

// Tokenize implements engine.Engine.
func (e *Engine) Tokenize(ctx context.Context, p engine.Prompt, most int) ([]int32, error) {
	ids, err := e.tokenize(ctx, p)
	if len(ids) > most {
		return nil, &engine.Error{Kind: engine.ContextLength, Param: "prompt", Message: fmt.Sprintf("the text has at least %d tokens, the limit is %d", most+1, most)}
	}
	return ids, err
}

func (e *Engine) tokenize(ctx context.Context, p engine.Prompt) ([]int32, error) {
	switch {
	case p.IDs != nil:
		return p.IDs, nil
	case p.Chat != nil:
		text, err := e.Render(ctx, p.Chat)
		if err != nil {
			return nil, err
		}
		return append([]int32{BOS}, bytesOf(text)...), nil
	case p.NoBOS:
		return bytesOf(*p.Text), nil
	}
	return append([]int32{BOS}, bytesOf(*p.Text)...), nil
}

func bytesOf(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	return ids
}

// Detokenize implements engine.Engine.
func (e *Engine) Detokenize(ids []int32, skipSpecial bool) (string, error) {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id < 0 || id >= Vocab:
			return "", &engine.Error{Kind: engine.BadRequest, Param: "tokens", Message: fmt.Sprintf("token %d is not in the vocabulary", id)}
		case id < 256:
			b.WriteByte(byte(id))
		case !skipSpecial:
			b.WriteString([]string{"<bos>", "<eos>"}[id-BOS])
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD"), nil
}

// Render implements engine.Engine: <role>content for every message, then <assistant>. Content is a
// string or text parts; a role "raise" fails as a template that raises does.
func (e *Engine) Render(_ context.Context, c *engine.Chat) (string, error) {
	var messages []struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	}
	if err := json.Unmarshal(c.Messages, &messages); err != nil {
		return "", &engine.Error{Kind: engine.BadRequest, Param: "messages", Message: "messages do not parse"}
	}
	var b strings.Builder
	for _, m := range messages {
		if m.Role == "raise" {
			return "", &engine.Error{Kind: engine.BadRequest, Param: "messages", Message: "the template raised"}
		}
		fmt.Fprintf(&b, "<%s>", m.Role)
		switch content := m.Content.(type) {
		case string:
			b.WriteString(content)
		case []any:
			for _, part := range content {
				if p, ok := part.(map[string]any); ok {
					fmt.Fprint(&b, p["text"])
				}
			}
		}
	}
	if !c.NoGenerationPrompt {
		b.WriteString("<assistant>")
	}
	return b.String(), nil
}
