// Package limits bounds what each API key may use: requests and tokens a minute, and answers at a
// time.
package limits

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"krater/actors/engine"
)

// Limits bound one key; 0 means no limit.
type Limits struct {
	Requests   int // a minute
	Tokens     int // a minute, of prompts and answers
	Concurrent int // answers at a time
}

// Limiter holds the limits of all keys, by owner. A nil one has none.
type Limiter struct{ owners map[string]*owner }

// New makes a limiter; owners without limits may be left out.
func New(limits map[string]Limits) *Limiter {
	l := &Limiter{owners: map[string]*owner{}}
	for name, own := range limits {
		l.owners[name] = &owner{
			limits:   own,
			requests: bucket{most: float64(own.Requests), left: float64(own.Requests)},
			tokens:   bucket{most: float64(own.Tokens), left: float64(own.Tokens)},
		}
	}
	return l
}

// owner is a key with what it has left.
type owner struct {
	limits Limits

	mu               sync.Mutex
	requests, tokens bucket
	running          int
}

// bucket holds an amount that grows back within a minute. A request may take it below zero, since the
// length of an answer is not known before; the next ones wait.
type bucket struct {
	most, left float64
	at         time.Time // of left
}

// fill brings the bucket up to now.
func (b *bucket) fill(now time.Time) {
	if !b.at.IsZero() {
		b.left = min(b.most, b.left+b.most*now.Sub(b.at).Minutes())
	}
	b.at = now
}

// has reports whether there are n, but for what rounding takes.
func (b *bucket) has(n float64) bool { return b.left > n-1e-6 }

// until returns the time until there are n.
func (b *bucket) until(n float64) time.Duration {
	if b.has(n) {
		return 0
	}
	return time.Duration(math.Ceil((n - b.left) / b.most * float64(time.Minute)))
}

// Submit submits a request if its owner's limits allow it; the error is an *engine.Error of kind
// Overloaded otherwise. Background requests count, but are not refused: they run in the gaps.
func (l *Limiter) Submit(ctx context.Context, e engine.Engine, req *engine.Request) (engine.Stream, error) {
	if l == nil || l.owners[req.Owner] == nil {
		return e.Submit(ctx, req)
	}
	o := l.owners[req.Owner]
	if err := o.enter(req.Background); err != nil {
		return nil, err
	}
	s, err := e.Submit(ctx, req)
	if err != nil {
		o.leave(1)
		return nil, err
	}
	o.use(s.PromptTokens())
	return &stream{Stream: s, owner: o}, nil
}

// enter takes a request.
func (o *owner) enter(background bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.requests.fill(now)
	o.tokens.fill(now)
	if !background {
		switch {
		case o.limits.Concurrent > 0 && o.running >= o.limits.Concurrent:
			return refusal("this key may have %d answers at a time", o.limits.Concurrent, time.Second)
		case o.limits.Requests > 0 && !o.requests.has(1):
			return refusal("this key may send %d requests a minute", o.limits.Requests, o.requests.until(1))
		case o.limits.Tokens > 0 && !o.tokens.has(1):
			return refusal("this key may use %d tokens a minute", o.limits.Tokens, o.tokens.until(1))
		}
	}
	o.running++
	o.requests.left--
	return nil
}

func refusal(format string, limit int, wait time.Duration) error {
	return &engine.Error{Kind: engine.Overloaded, Message: fmt.Sprintf(format, limit), RetryAfter: wait}
}

// leave ends a request; n requests are given back, which were not accepted.
func (o *owner) leave(n float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	o.requests.left += n
}

// use counts tokens.
func (o *owner) use(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tokens.fill(time.Now())
	o.tokens.left -= float64(n)
}

// stream counts the tokens of an answer.
type stream struct {
	engine.Stream
	owner *owner

	mu      sync.Mutex
	counted int
	over    sync.Once
}

// Next implements engine.Stream.
func (s *stream) Next(ctx context.Context) (engine.Event, error) {
	e, err := s.Stream.Next(ctx)
	s.mu.Lock()
	more := e.Usage.Completion - s.counted
	if more > 0 {
		s.counted += more
	}
	s.mu.Unlock()
	if more > 0 {
		s.owner.use(more)
	}
	if err == nil && (e.Kind == engine.Done || e.Kind == engine.Failed) {
		s.end()
	}
	return e, err
}

// Close implements engine.Stream.
func (s *stream) Close() {
	s.Stream.Close()
	s.end()
}

func (s *stream) end() { s.over.Do(func() { s.owner.leave(0) }) }

// Headers sets the headers by which clients see what an owner has left: those of the OpenAI API, or
// of the Anthropic API.
func (l *Limiter) Headers(name string, anthropic bool, h http.Header) {
	if l == nil || l.owners[name] == nil {
		return
	}
	o := l.owners[name]
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, b := range []struct {
		kind   string
		bucket *bucket
	}{{"requests", &o.requests}, {"tokens", &o.tokens}} {
		if b.bucket.most == 0 {
			continue
		}
		b.bucket.fill(now)
		limit, left, full := strconv.Itoa(int(b.bucket.most)), strconv.Itoa(max(0, int(b.bucket.left))), b.bucket.until(b.bucket.most)
		if anthropic {
			at := "anthropic-ratelimit-" + b.kind
			h.Set(at+"-limit", limit)
			h.Set(at+"-remaining", left)
			h.Set(at+"-reset", now.Add(full).UTC().Format(time.RFC3339))
			continue
		}
		h.Set("x-ratelimit-limit-"+b.kind, limit)
		h.Set("x-ratelimit-remaining-"+b.kind, left)
		h.Set("x-ratelimit-reset-"+b.kind, full.Round(time.Millisecond).String())
	}
}
