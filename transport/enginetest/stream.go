package enginetest

import (
	"context"
	"io"
	"sync"
	"time"

	"krater/actors/engine"
)

// Step is one event of a script, held back until Gate is closed (nil: at once).
type Step struct {
	Event engine.Event
	Gate  <-chan struct{}
}

// Script returns the i-th step of an answer. If it returns false, the stream ends like that of an
// engine that broke its contract, so scripts end with Done or Failed.
type Script func(i int) (Step, bool)

// Steps plays the list.
func Steps(steps ...Step) Script {
	return func(i int) (Step, bool) {
		if i >= len(steps) {
			return Step{}, false
		}
		return steps[i], true
	}
}

// Text plays Queued, Started, one Tokens event a piece and Done with "stop".
func Text(pieces ...string) Script { return Finish(engine.FinishStop, pieces...) }

// Finish is Text with another finish reason.
func Finish(reason engine.FinishReason, pieces ...string) Script {
	steps := opening(pieces)
	steps = append(steps, Step{Event: engine.Event{
		Kind: engine.Done, Finish: reason, Usage: engine.Usage{Completion: len(pieces)},
	}})
	return Steps(steps...)
}

// Fail plays the pieces and ends with err.
func Fail(err *engine.Error, pieces ...string) Script {
	steps := opening(pieces)
	steps = append(steps, Step{Event: engine.Event{
		Kind: engine.Failed, Err: err, Usage: engine.Usage{Completion: len(pieces)},
	}})
	return Steps(steps...)
}

// Forever plays piece without end.
func Forever(piece string) Script {
	return func(int) (Step, bool) { return Step{Event: engine.Event{Kind: engine.Tokens, Text: piece}}, true }
}

// Gated holds back step i and all that follow until gate is closed.
func Gated(s Script, i int, gate <-chan struct{}) Script {
	return func(j int) (Step, bool) {
		step, ok := s(j)
		if j == i {
			step.Gate = gate
		}
		return step, ok
	}
}

// Timed plays s by the clock, for one request: Queued at once, Started after queue, the first event
// of the answer first later and each further one each later, Done with the last of them. The clock
// starts when the first event is asked for.
func Timed(s Script, queue, first, each time.Duration) Script {
	var gates []<-chan struct{}
	var start time.Time
	return func(i int) (Step, bool) {
		if start.IsZero() {
			start = time.Now()
		}
		step, ok := s(i)
		for ok && len(gates) <= i {
			var at time.Duration
			if n := len(gates); n > 0 {
				at = queue
				if n > 1 {
					at += first + time.Duration(n-2)*each
				}
			}
			if step.Event.Kind == engine.Done && i > 2 {
				at -= each
			}
			gate := make(chan struct{})
			time.AfterFunc(time.Until(start.Add(at)), func() { close(gate) })
			gates = append(gates, gate)
		}
		if ok {
			step.Gate = gates[i]
		}
		return step, ok
	}
}

func opening(pieces []string) []Step {
	steps := []Step{{Event: engine.Event{Kind: engine.Queued}}, {Event: engine.Event{Kind: engine.Started}}}
	for _, p := range pieces {
		steps = append(steps, Step{Event: engine.Event{Kind: engine.Tokens, Text: p}})
	}
	return steps
}

// Ending says how a stream came to its end.
type Ending string

// The endings of a stream.
const (
	Running   Ending = ""
	Ended     Ending = "ended"     // Done or Failed was read
	Closed    Ending = "closed"    // Close came first
	Cancelled Ending = "cancelled" // the submitting context came first
)

// Stream plays one script.
type Stream struct {
	owner  *Engine
	script Script
	prompt int
	stop   func() bool // unhooks the submitting context
	over   chan struct{}

	mu     sync.Mutex
	next   int
	ending Ending
}

func newStream(owner *Engine, script Script, prompt int) *Stream {
	return &Stream{owner: owner, script: script, prompt: prompt, over: make(chan struct{})}
}

// Ending returns how the stream ended, if it did.
func (s *Stream) Ending() Ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// PromptTokens implements engine.Stream.
func (s *Stream) PromptTokens() int { return s.prompt }

// Next implements engine.Stream.
func (s *Stream) Next(ctx context.Context) (engine.Event, error) {
	s.mu.Lock()
	ending, i := s.ending, s.next
	s.mu.Unlock()
	if ending != Running {
		return engine.Event{}, io.EOF
	}
	step, ok := s.script(i)
	if !ok {
		s.end(Ended)
		return engine.Event{}, io.EOF
	}
	if step.Gate != nil {
		select {
		case <-step.Gate:
		case <-ctx.Done():
			return engine.Event{}, ctx.Err()
		case <-s.over:
			return engine.Event{}, io.EOF
		}
	}
	if err := ctx.Err(); err != nil {
		return engine.Event{}, err
	}
	s.mu.Lock()
	s.next++
	s.mu.Unlock()
	ev := step.Event
	if ev.Kind == engine.Done || ev.Kind == engine.Failed {
		if ev.Usage.Prompt == 0 {
			ev.Usage.Prompt = s.prompt
		}
		s.end(Ended)
	}
	return ev, nil
}

// Close implements engine.Stream.
func (s *Stream) Close() { s.end(Closed) }

func (s *Stream) cancel() { s.end(Cancelled) }

// end stops counting the stream before it signals the end, so that a second caller sees the new
// count.
func (s *Stream) end(how Ending) {
	s.mu.Lock()
	if s.ending != Running {
		s.mu.Unlock()
		return
	}
	s.ending = how
	s.owner.mu.Lock()
	stop := s.stop
	s.owner.open--
	s.owner.note()
	s.owner.mu.Unlock()
	close(s.over)
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}
