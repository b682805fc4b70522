package actors

import (
	"context"
	"io"
	"sync"

	"krater/actors/engine"
)

// answer is the reader's end of one request: an engine.Stream. The stream actor pushes events and
// never waits. Text that is not read yet is joined, so an answer holds at most one text event for
// each of its parts, however slow its reader is.
type answer struct {
	prompt int
	cancel func() // tells the schedule actor; may be called more than once

	mu      sync.Mutex
	pending []engine.Event // undelivered
	joined  []byte         // the text of the last one when more than one push made it
	ended   bool           // the last event was pushed
	closed  bool           // the reader has gone
	unwatch func() bool    // ends the watch of the request's context
	ready   chan struct{}  // holds a token while pending or ended changed
}

func newAnswer(prompt int) *answer {
	return &answer{prompt: prompt, ready: make(chan struct{}, 1), cancel: func() {}}
}

// watch cancels the request when ctx ends before the answer does. The reader still gets the events
// up to the last one.
func (a *answer) watch(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended && !a.closed {
		a.unwatch = context.AfterFunc(ctx, a.cancel)
	}
}

// release ends the watch; a.mu is held.
func (a *answer) release() {
	if a.unwatch != nil {
		a.unwatch()
		a.unwatch = nil
	}
}

// push appends an event. After the last one, or after the reader has left, it does nothing.
func (a *answer) push(e engine.Event) {
	a.mu.Lock()
	if !a.closed && !a.ended {
		if a.ended = e.Kind == engine.Done || e.Kind == engine.Failed; a.ended {
			a.release()
		}
		switch n := len(a.pending); {
		case n > 0 && joins(&a.pending[n-1], &e):
			a.join(&a.pending[n-1], &e)
		case n > 0 && e.Kind == engine.Progress && a.pending[n-1].Kind == engine.Progress:
			a.pending[n-1] = e
		case n > 0 && e.Kind == engine.Scored && a.pending[n-1].Kind == engine.Scored:
			a.pending[n-1].Tokens = append(a.pending[n-1].Tokens, e.Tokens...)
		default:
			if n > 0 {
				a.settle(&a.pending[n-1])
			}
			a.pending = append(a.pending, e)
		}
	}
	a.mu.Unlock()
	a.wake()
}

// joins reports whether e continues the text of the last event.
func joins(last, e *engine.Event) bool {
	return last.Kind == engine.Tokens && e.Kind == engine.Tokens && last.Part == e.Part && e.Part != engine.CallPart
}

// settle gives the last event its whole text.
func (a *answer) settle(last *engine.Event) {
	if len(a.joined) > 0 {
		last.Text = string(a.joined)
		a.joined = a.joined[:0]
	}
}

// join adds e to the text event that waits. The text grows in a buffer: a long answer that is not
// read would otherwise be copied once per token.
func (a *answer) join(last, e *engine.Event) {
	if len(a.joined) == 0 {
		a.joined = append(a.joined, last.Text...)
	}
	a.joined = append(a.joined, e.Text...)
	last.Tokens = append(last.Tokens, e.Tokens...)
	last.Usage = e.Usage
}

// pop takes the oldest event; a.mu is held and there is one.
func (a *answer) pop() engine.Event {
	if len(a.pending) == 1 {
		a.settle(&a.pending[0])
	}
	e := a.pending[0]
	n := copy(a.pending, a.pending[1:])
	a.pending[n] = engine.Event{}
	a.pending = a.pending[:n]
	return e
}

// Next implements engine.Stream.
func (a *answer) Next(ctx context.Context) (engine.Event, error) {
	for {
		a.mu.Lock()
		if len(a.pending) > 0 {
			e := a.pop()
			more := len(a.pending) > 0 || a.ended
			a.mu.Unlock()
			if more {
				a.wake()
			}
			return e, nil
		}
		over := a.ended || a.closed
		a.mu.Unlock()
		if over {
			a.wake() // for another waiter
			return engine.Event{}, io.EOF
		}
		select {
		case <-a.ready:
		case <-ctx.Done():
			return engine.Event{}, ctx.Err()
		}
	}
}

func (a *answer) wake() {
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

// Close implements engine.Stream.
func (a *answer) Close() {
	a.mu.Lock()
	running := !a.closed && !a.ended
	a.closed = true
	a.pending, a.joined = nil, nil
	a.release()
	a.mu.Unlock()
	if running {
		a.cancel()
	}
	a.wake()
}

// PromptTokens implements engine.Stream.
func (a *answer) PromptTokens() int { return a.prompt }
