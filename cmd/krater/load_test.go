package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestVanish: a client that goes after two pieces of text frees its place and
// its blocks at once, on every streaming route.
func TestVanish(t *testing.T) {
	s := open(t)
	for i, r := range streams(endless(1900)) {
		pieces := 0
		_, err := r.ask(t.Context(), s, endless(1900), func(string) error {
			if pieces++; pieces == 2 {
				return errLeft
			}
			return nil
		})
		if !errors.Is(err, errLeft) {
			t.Fatalf("%s: %v", r.name, err)
		}
		took := s.poll(10*time.Second, func() error {
			m := s.metrics()
			if n := m[`krater:request_success{finished_reason="abort"}`]; n != float64(i+1) {
				return fmt.Errorf("%v requests count as aborted, want %d", n, i+1)
			}
			return atRest(m)
		})
		t.Logf("%s: at rest %v after the client left", r.name, took.Round(time.Millisecond))
	}
	if n := s.metrics()["krater:generation_tokens_total"]; n > 1900 {
		t.Errorf("%v tokens were generated for clients that had left", n)
	}
	// One that only waits for its whole answer leaves as well.
	for _, r := range []route{routes[0], routes[2], routes[4]} {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := r.ask(ctx, s, endless(1900), idle)
			ended <- err
		}()
		s.poll(patience, func() error {
			if s.metrics()["krater:num_requests_running"] != 1 {
				return errors.New("nothing runs")
			}
			return nil
		})
		leave()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", r.name, err)
		}
		s.poll(10*time.Second, func() error { return atRest(s.metrics()) })
	}
}

// TestTogetherAndAlone: eight equal greedy requests, and eight with different
// seeds, get together what they get alone.
func TestTogetherAndAlone(t *testing.T) {
	s := open(t)
	var questions []question
	for i := range 8 {
		questions = append(questions, endless(40), endless(40).with("temperature", 1.5).with("seed", i))
	}
	var want []reply
	for _, q := range questions {
		want = append(want, s.reply(t, routes[0], q))
	}
	got := s.together(t, routes[0], questions)
	different := map[string]bool{}
	for i := range questions {
		different[want[i].text] = true
		if !same(got[i], want[i]) {
			t.Errorf("%v: together %v, alone %v", questions[i], got[i], want[i])
		}
	}
	if len(different) < 3 {
		t.Error("the seeds make no difference")
	}
}

// together asks all questions at the same time.
func (s *site) together(t testing.TB, r route, questions []question) []reply {
	t.Helper()
	got, errs := make([]reply, len(questions)), make([]error, len(questions))
	var all sync.WaitGroup
	for i, q := range questions {
		all.Go(func() { got[i], errs[i] = s.ask(r, q) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestLongPromptsBesideAStream: a stream goes on while long prompts are read.
func TestLongPromptsBesideAStream(t *testing.T) {
	s := open(t)
	long := greedy(strings.Repeat("The ship passed the lighthouse. ", 300), 1)
	const prompts = 2
	var read time.Duration
	during, begun, over := 0, make(chan struct{}), make(chan struct{})
	var gap time.Duration
	go func() {
		defer close(over)
		<-begun
		start := time.Now()
		for _, a := range s.together(t, routes[0], slices.Repeat([]question{long}, prompts)) {
			if a.prompt < 1500 {
				t.Errorf("the long prompt has %d tokens", a.prompt)
			}
		}
		read = time.Since(start)
	}()
	pieces, last := 0, time.Now()
	_, err := routes[1].ask(t.Context(), s, endless(2000), func(string) error {
		now := time.Now()
		pieces++
		select {
		case <-over:
			return errLeft
		default:
		}
		if pieces == 5 {
			close(begun)
		} else if pieces > 5 {
			during++
			gap = max(gap, now.Sub(last))
		}
		last = now
		return nil
	})
	if !errors.Is(err, errLeft) {
		t.Fatalf("the stream ended before the prompts were read: %v", err)
	}
	t.Logf("%d prompts read in %v, meanwhile %d pieces of the stream, the longest gap %v", prompts, read.Round(time.Millisecond), during, gap.Round(time.Millisecond))
	// A step has at most 256 prompt tokens, and each step adds one token to the stream.
	if during < 6 {
		t.Errorf("%d pieces of the stream while the prompts were read", during)
	}
	if gap > 10*time.Second {
		t.Errorf("the stream stood still for %v", gap)
	}
}

// TestOneClientBeforeAndAfterMany: what many clients need leaves no cost for
// one.
func TestOneClientBeforeAndAfterMany(t *testing.T) {
	s := open(t)
	q := endless(48)
	alone := func() time.Duration {
		var took []time.Duration
		for range 3 {
			start := time.Now()
			s.reply(t, routes[0], q)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[1]
	}
	alone()
	// The machine may be busy with something else for a while: only a cost that
	// stays counts.
	var before, many, after time.Duration
	for range 5 {
		before = alone()
		start := time.Now()
		s.together(t, routes[0], slices.Repeat([]question{q}, 8))
		many = time.Since(start)
		if after = alone(); after < 2*before {
			break
		}
	}
	t.Logf("one client %v, then eight at once %v, then one %v", before.Round(time.Millisecond), many.Round(time.Millisecond), after.Round(time.Millisecond))
	if after >= 2*before {
		t.Errorf("one client took %v before and %v after", before, after)
	}
}

// TestQueueIsBounded: more requests than the queue holds are told to come
// again, on every route, and nothing else happens to them.
func TestQueueIsBounded(t *testing.T) {
	s := open(t, "--max-seqs", "1", "--max-queue", "1")
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 { // one runs, one waits
		all.Go(func() { _, _ = routes[1].ask(ctx, s, endless(1900), idle) })
	}
	s.poll(patience, func() error {
		m := s.metrics()
		if m["krater:num_requests_running"] != 1 || m["krater:num_requests_waiting"] != 1 {
			return errors.New("the queue is not full")
		}
		return nil
	})
	for _, r := range routes {
		_, err := s.ask(r, greedy(lighthouse, 3))
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != 429 && refused.code != "rate_limit_exceeded" {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	leave()
	all.Wait()
	s.poll(10*time.Second, func() error { return atRest(s.metrics()) })
	if got := s.reply(t, routes[0], greedy(lighthouse, 0)); got.text != readGolden(t).Prompts[0].Answer {
		t.Errorf("afterwards: %v", got)
	}
}

// TestSmallKVCache: requests wait for blocks instead of failing, and one that
// could never have enough is refused with the reason.
func TestSmallKVCache(t *testing.T) {
	s := open(t, "--kv-cache", "280000", "--block-tokens", "32") // seven blocks
	want := s.reply(t, routes[0], endless(60))
	for _, got := range s.together(t, routes[0], slices.Repeat([]question{endless(60)}, 6)) {
		if !same(got, want) {
			t.Errorf("%v, alone %v", got, want)
		}
	}
	s.poll(10*time.Second, func() error { return atRest(s.metrics()) })
	_, err := s.ask(routes[0], greedy(strings.Repeat("word ", 400), 10))
	var refused *refusal
	if !errors.As(err, &refused) || refused.status != 400 {
		t.Errorf("a prompt over the KV cache: %v", err)
	}
	t.Log(err)
}
