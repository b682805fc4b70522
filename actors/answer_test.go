package actors

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"krater/actors/engine"
)

func TestAnswerJoinsUnreadText(t *testing.T) {
	a := newAnswer(3)
	a.push(engine.Event{Kind: engine.Started})
	for _, s := range []string{"a", "b", "c"} {
		a.push(engine.Event{Kind: engine.Tokens, Text: s, Usage: engine.Usage{Completion: 1}})
	}
	a.push(engine.Event{Kind: engine.Done, Finish: engine.FinishStop})
	var got []engine.Event
	for {
		e, err := a.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if len(got) != 3 || got[1].Text != "abc" || got[2].Finish != engine.FinishStop {
		t.Fatalf("events %+v", got)
	}
	a.push(engine.Event{Kind: engine.Tokens, Text: "late"})
	if _, err := a.Next(context.Background()); !errors.Is(err, io.EOF) {
		t.Fatalf("after the end: %v", err)
	}
}

func TestAnswerCloseCancelsOnce(t *testing.T) {
	a := newAnswer(1)
	n := 0
	a.cancel = func() { n++ }
	done := make(chan error, 1)
	go func() {
		_, err := a.Next(context.Background())
		done <- err
	}()
	a.Close()
	a.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Fatalf("Next after Close: %v", err)
	}
	if n != 1 {
		t.Fatalf("cancelled %d times", n)
	}
	b := newAnswer(1)
	b.cancel = func() { n++ }
	b.push(engine.Event{Kind: engine.Done})
	b.Close()
	if n != 1 {
		t.Fatal("closing a finished answer cancelled it")
	}
}

func TestAnswerNextHonoursContext(t *testing.T) {
	a := newAnswer(1)
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	if _, err := a.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}
