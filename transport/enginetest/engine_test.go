package enginetest

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
)

func submit(t *testing.T, e *Engine, ctx context.Context, text string) (engine.Stream, error) {
	t.Helper()
	return e.Submit(ctx, &engine.Request{Prompt: engine.Prompt{Text: &text}})
}

func TestScriptRunsToItsEnd(t *testing.T) {
	e := New()
	s, err := submit(t, e, t.Context(), "hi")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for {
		ev, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text += ev.Text
		if ev.Kind == engine.Done && (ev.Usage.Prompt != 3 || ev.Usage.Completion != 3 || ev.Finish != engine.FinishStop) {
			t.Errorf("%+v", ev)
		}
	}
	if text != "Hello world!" || e.Open() != 0 || e.Streams()[0].Ending() != Ended {
		t.Errorf("%q, %d open, %q", text, e.Open(), e.Streams()[0].Ending())
	}
}

func TestCloseAndCancel(t *testing.T) {
	e := New()
	e.Play(Gated(Text("a"), 0, make(chan struct{})))
	ctx, cancel := context.WithCancel(t.Context())
	one, _ := submit(t, e, ctx, "a")
	two, _ := submit(t, e, ctx, "b")
	two.Close()
	two.Close()
	cancel()
	if err := e.WaitOpen(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after a cancel: %v", err)
	}
	if a, b := e.Streams()[0].Ending(), e.Streams()[1].Ending(); a != Cancelled || b != Closed {
		t.Errorf("endings %q %q", a, b)
	}
}

func TestNextGivesUpOnlyTheWait(t *testing.T) {
	e := New()
	gate := make(chan struct{})
	e.Play(Gated(Text("a"), 0, gate))
	s, _ := submit(t, e, t.Context(), "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(gate)
	if ev, err := s.Next(t.Context()); err != nil || ev.Kind != engine.Queued {
		t.Errorf("%+v %v: a cancelled wait must lose nothing", ev, err)
	}
	s.Close()
}

func TestOverLongPrompt(t *testing.T) {
	e := New()
	e.SetInfo(func(i *engine.Info) { i.Context = 2 })
	_, err := submit(t, e, t.Context(), "abc")
	if got, ok := errors.AsType[*engine.Error](err); !ok || got.Kind != engine.ContextLength {
		t.Errorf("%v", err)
	}
}

func TestTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New()
		e.Play(Timed(Text("a", "b", "c"), time.Second, 5*time.Second, 2*time.Second))
		s, _ := submit(t, e, t.Context(), "x")
		start := time.Now()
		var at []time.Duration
		for {
			_, err := s.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			at = append(at, time.Since(start)/time.Second)
		}
		if want := []time.Duration{0, 1, 6, 8, 10, 10}; !slices.Equal(at, want) {
			t.Errorf("events after %v s, want %v", at, want)
		}
	})
}

// TestEndsAtOnce: a caller that sees the end of a stream finds it counted out.
func TestEndsAtOnce(t *testing.T) {
	e := New()
	for range 20_000 {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := submit(t, e, ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		for s.(*Stream).Ending() == Running {
			runtime.Gosched()
		}
		s.Close()
		if n := e.Open(); n != 0 {
			t.Fatalf("%d open after Close", n)
		}
	}
}
