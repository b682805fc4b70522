package limits

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

func ask(t *testing.T, l *Limiter, e engine.Engine, owner string, change func(*engine.Request)) (engine.Stream, *engine.Error) {
	t.Helper()
	text := "abc" // four tokens with the begin token
	req := &engine.Request{Prompt: engine.Prompt{Text: &text}, Owner: owner}
	if change != nil {
		change(req)
	}
	s, err := l.Submit(t.Context(), e, req)
	if err == nil {
		return s, nil
	}
	refused, ok := errors.AsType[*engine.Error](err)
	if !ok || refused.Kind != engine.Overloaded {
		t.Fatalf("%v", err)
	}
	return nil, refused
}

func drain(t *testing.T, s engine.Stream) {
	t.Helper()
	for {
		e, err := s.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == engine.Done {
			s.Close()
			return
		}
	}
}

func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := New(map[string]Limits{"a": {Requests: 2}}), enginetest.New()
		for range 2 {
			s, _ := ask(t, l, e, "a", nil)
			drain(t, s)
		}
		if _, err := ask(t, l, e, "a", nil); err == nil || err.RetryAfter != 30*time.Second {
			t.Errorf("%+v, want a wait of 30 s", err)
		}
		s, _ := ask(t, l, e, "b", nil) // another key
		drain(t, s)
		s, _ = ask(t, l, e, "a", func(r *engine.Request) { r.Background = true }) // counts, too
		drain(t, s)
		time.Sleep(59 * time.Second)
		if _, err := ask(t, l, e, "a", nil); err == nil {
			t.Error("a background request did not count")
		}
		time.Sleep(time.Second)
		s, _ = ask(t, l, e, "a", nil)
		drain(t, s)
		// A refused request is not counted.
		e.SetReady(&engine.Error{Kind: engine.Unavailable})
		time.Sleep(time.Minute)
		if _, err := l.Submit(t.Context(), e, &engine.Request{Owner: "a"}); err == nil {
			t.Fatal("accepted")
		}
		e.SetReady(nil)
		for range 2 {
			s, _ := ask(t, l, e, "a", nil)
			drain(t, s)
		}
	})
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := New(map[string]Limits{"a": {Tokens: 10}}), enginetest.New()
		s, _ := ask(t, l, e, "a", nil)
		h := http.Header{}
		l.Headers("a", false, h)
		if h.Get("x-ratelimit-limit-tokens") != "10" || h.Get("x-ratelimit-remaining-tokens") != "6" || h.Get("x-ratelimit-reset-tokens") != "24s" || h.Get("x-ratelimit-limit-requests") != "" {
			t.Errorf("%v", h)
		}
		drain(t, s) // three tokens more
		s, _ = ask(t, l, e, "a", nil)
		drain(t, s)
		// 14 of 10 are used: the first token is there after five twelfths of a minute.
		if _, err := ask(t, l, e, "a", nil); err == nil || err.RetryAfter != 30*time.Second {
			t.Errorf("%+v", err)
		}
		h = http.Header{}
		l.Headers("a", true, h)
		if h.Get("anthropic-ratelimit-tokens-remaining") != "0" || h.Get("anthropic-ratelimit-tokens-reset") != time.Now().Add(84*time.Second).UTC().Format(time.RFC3339) {
			t.Errorf("%v", h)
		}
		time.Sleep(30 * time.Second)
		s, _ = ask(t, l, e, "a", nil)
		drain(t, s)
	})
}

func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := New(map[string]Limits{"a": {Concurrent: 2}}), enginetest.New()
		e.Play(enginetest.Forever("x"))
		first, _ := ask(t, l, e, "a", nil)
		second, _ := ask(t, l, e, "a", nil)
		if _, err := ask(t, l, e, "a", nil); err == nil {
			t.Error("a third answer")
		}
		first.Close()
		first.Close() // counts once
		third, _ := ask(t, l, e, "a", nil)
		if _, err := ask(t, l, e, "a", nil); err == nil {
			t.Error("a third answer after one has ended")
		}
		second.Close()
		third.Close()
	})
}
