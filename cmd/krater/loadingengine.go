package main

import (
	"context"
	"sync/atomic"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/cmd/krater/keyring"
	"krater/cmd/krater/term"
	"krater/transport/otlp"
	"krater/transport/webui"
)

// loadingEngine stands in for an engine that is still loading, so that the server can listen first:
// /health answers at once, and /ready reports when the model is loaded.
type loadingEngine struct {
	name     string
	start    time.Time
	keys     *keyring.Ring  // its ranges of priorities apply to every API
	progress *term.Progress // progress of the load
	engine   atomic.Pointer[engine.Engine]
}

func newLoadingEngine(name string, keys *keyring.Ring, p *term.Progress) *loadingEngine {
	return &loadingEngine{name: name, start: time.Now(), keys: keys, progress: p}
}

func (l *loadingEngine) set(e engine.Engine) { l.engine.Store(&e) }

func (l *loadingEngine) get() (engine.Engine, error) {
	if e := l.engine.Load(); e != nil {
		return *e, nil
	}
	s := l.progress.State()
	loading := &engine.Loading{Phase: s.Phase, Share: s.Share(), Rate: s.Rate()}
	if left, ok := s.Left(); ok {
		loading.Left = &left
	}
	return nil, &engine.Error{Kind: engine.Unavailable, Message: "the model is loading", RetryAfter: time.Second, Loading: loading}
}

// Info implements engine.Engine.
func (l *loadingEngine) Info() engine.Info {
	if e, err := l.get(); err == nil {
		return e.Info()
	}
	return engine.Info{ID: l.name, Created: l.start, Defaults: engine.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
}

// Ready implements engine.Engine.
func (l *loadingEngine) Ready() error {
	e, err := l.get()
	if err != nil {
		return err
	}
	return e.Ready()
}

// Submit implements engine.Engine.
func (l *loadingEngine) Submit(ctx context.Context, req *engine.Request) (engine.Stream, error) {
	e, err := l.get()
	if err != nil {
		return nil, err
	}
	req.Priority = l.keys.Clip(req.Owner, req.Priority)
	return l.keys.Limiter().Submit(ctx, e, req)
}

// Tokenize implements engine.Engine.
func (l *loadingEngine) Tokenize(ctx context.Context, p engine.Prompt, most int) ([]int32, error) {
	e, err := l.get()
	if err != nil {
		return nil, err
	}
	return e.Tokenize(ctx, p, most)
}

// Detokenize implements engine.Engine.
func (l *loadingEngine) Detokenize(ids []int32, skipSpecial bool) (string, error) {
	e, err := l.get()
	if err != nil {
		return "", err
	}
	return e.Detokenize(ids, skipSpecial)
}

// Render implements engine.Engine.
func (l *loadingEngine) Render(ctx context.Context, c *engine.Chat) (string, error) {
	e, err := l.get()
	if err != nil {
		return "", err
	}
	return e.Render(ctx, c)
}

// inside returns the engine for inspection; nil while it is loading.
func (l *loadingEngine) inside() webui.Source {
	e, err := l.get()
	if err != nil {
		return nil
	}
	in, _ := e.(webui.Source)
	return in
}

// Topology implements webui.Source.
func (l *loadingEngine) Topology() engine.Topology {
	if in := l.inside(); in != nil {
		return in.Topology()
	}
	return engine.Topology{}
}

// Trace implements webui.Source.
func (l *loadingEngine) Trace() *trace.Registry {
	if in := l.inside(); in != nil {
		return in.Trace()
	}
	return nil
}

// Running implements webui.Source.
func (l *loadingEngine) Running() []engine.Running {
	if in := l.inside(); in != nil {
		return in.Running()
	}
	return nil
}

// Origin implements otlp.Source.
func (l *loadingEngine) Origin(id uint64) engine.Origin {
	if in, ok := l.inside().(otlp.Source); ok {
		return in.Origin(id)
	}
	return engine.Origin{}
}

// Cancel implements webui.Source.
func (l *loadingEngine) Cancel(id uint64) {
	if in := l.inside(); in != nil {
		in.Cancel(id)
	}
}

// Heat implements webui.Source.
func (l *loadingEngine) Heat() engine.Heat {
	if in := l.inside(); in != nil {
		return in.Heat()
	}
	return engine.Heat{}
}

// Prefixes implements engine.Engine.
func (l *loadingEngine) Prefixes(ctx context.Context, owner string) (engine.Prefixes, error) {
	e, err := l.get()
	if err != nil {
		return engine.Prefixes{}, err
	}
	return e.Prefixes(ctx, owner)
}

// Stats implements engine.Engine.
func (l *loadingEngine) Stats() engine.Stats {
	if e, err := l.get(); err == nil {
		return e.Stats()
	}
	return engine.Stats{}
}
