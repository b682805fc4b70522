package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/kernels/machine"
)

// crowd is many clients of one server that come, ask, misbehave and leave.
type crowd struct {
	s     *site
	exams []exam

	mu     sync.Mutex
	tally  map[string]int
	faults []string
}

// exam is a question with the answer it has when nobody else asks.
type exam struct {
	question
	want reply
}

// TestCrowd is the short form of the soak (make soak).
func TestCrowd(t *testing.T) {
	soak(t, 40, 3*time.Second, 12, rand.Uint64())
}

// soak runs the given number of clients for a time. Afterwards goroutines, KV blocks, queues
// and memory must be as they were before. Every complete answer must equal the answer to the
// same question asked alone.
func soak(t *testing.T, clients int, length time.Duration, questions int, seed uint64) {
	t.Logf("seed %d", seed)
	s := open(t)
	c := &crowd{s: s, tally: map[string]int{}}
	r := rand.New(rand.NewPCG(seed, 0))
	for len(c.exams) < questions {
		c.exams = append(c.exams, c.prepare(t, r, len(c.exams)%3 == 0))
	}
	goroutines := s.quiet()
	before := measureMemory()

	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { c.client(ctx, rand.New(rand.NewPCG(seed, uint64(i)+1))) })
	}
	start := time.Now()
	for i := range 3 {
		<-time.After(time.Until(start.Add(length * time.Duration(i+1) / 4)))
		t.Logf("resident %d MB after %d/4 of the time, %d goroutines", machine.Resident()>>20, i+1, runtime.NumGoroutine())
	}
	all.Wait()
	took := time.Since(start)

	s.http.CloseIdleConnections()
	s.poll(patience, func() error { return atRest(s.metrics()) })
	s.checkGoroutines(goroutines)
	after := measureMemory()
	c.report(t, took, before, after)
	// A response can be fetched for ten minutes: what the doors may keep for that
	// is not lost.
	const kept, slack = 64 << 20, 32 << 20
	if grown := after.heap - before.heap; grown > kept+slack {
		t.Errorf("the heap grew by %d MB", grown>>20)
	}
	if n := s.metrics()[`krater:request_success{finished_reason="error"}`]; n != 0 {
		t.Errorf("%v requests ended with an error inside the engine", n)
	}
	for _, e := range c.exams {
		if again := s.reply(t, c.home(e), e.question); !same(again, e.want) {
			t.Errorf("afterwards %+v is answered with %v, before with %v", e.question, again, e.want)
		}
	}
}

// same compares what an answer says, not in how many pieces it came.
func same(a, b reply) bool {
	return a.text == b.text && a.finish == b.finish && a.prompt == b.prompt && a.completion == b.completion
}

// home is the plainest route for a question.
func (c *crowd) home(e exam) route {
	if e.raw {
		return routes[2]
	}
	return routes[0]
}

var things = strings.Fields("lighthouse harbour anchor tower ship bird river bridge stone candle book horse garden engine clock")

// prepare makes up a question and asks it alone.
func (c *crowd) prepare(t *testing.T, r *rand.Rand, raw bool) exam {
	thing := things[r.IntN(len(things))]
	e := exam{question: question{
		text: fmt.Sprintf([]string{"What is a %s?", "Tell me about the %s.", "%s", "Is a %s large? \U0001F600 \uD55C"}[r.IntN(4)], thing),
		raw:  raw, max: 1 + r.IntN(60), forget: r.IntN(4) > 0, fields: map[string]any{"temperature": 0},
	}}
	if r.IntN(2) == 0 {
		e.fields = map[string]any{"temperature": 0.5 + 1.5*r.Float64(), "seed": r.IntN(1 << 30)}
	}
	for name, value := range map[string]any{
		"top_p": 0.5 + r.Float64()/2, "top_k": 1 + r.IntN(50), "min_p": r.Float64() / 10,
		"repetition_penalty": 1 + r.Float64()/4, "frequency_penalty": r.Float64(), "ignore_eos": true, "min_tokens": 1,
	} {
		if r.IntN(5) == 0 {
			e.fields[name] = value
		}
	}
	e.want = c.s.reply(t, c.home(e), e.question)
	if text := []rune(e.want.text); len(text) > 4 && r.IntN(3) == 0 { // stop where it is sure to come by
		at := 1 + r.IntN(len(text)-3)
		e.question = e.with("stop", []string{string(text[at:min(at+1+r.IntN(8), len(text))]), "never said"})
		e.want = c.s.reply(t, c.home(e), e.question)
	}
	return e
}

// count adds to the tally.
func (c *crowd) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally[what]++
}

func (c *crowd) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally["faults"]++
	if len(c.faults) < 20 {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

// grade compares an answer that came to its end.
func (c *crowd) grade(way string, e exam, got reply) {
	if !same(got, e.want) {
		c.fault("%s: %+v is answered with %v (%d tokens), alone with %v (%d)", way, e.question, got, got.completion, e.want, e.want.completion)
		return
	}
	c.count("finished over " + way)
}

// busy reports whether err says that the server is overloaded, which is not a fault.
func (c *crowd) busy(err error) bool {
	var r *refusal
	if errors.As(err, &r) && (r.status == http.StatusTooManyRequests || r.code == "rate_limit_exceeded") {
		c.count("told to come again")
		return true
	}
	return false
}

func (c *crowd) report(t *testing.T, took time.Duration, before, after memory) {
	for _, f := range c.faults {
		t.Error(f)
	}
	finished := 0
	for _, name := range slices.Sorted(maps.Keys(c.tally)) {
		t.Logf("%6d %s", c.tally[name], name)
		if strings.HasPrefix(name, "finished") {
			finished += c.tally[name]
		}
	}
	m := c.s.metrics()
	t.Logf("%.1f s, %v tokens generated, %v requests aborted", took.Seconds(), m["krater:generation_tokens_total"], m[`krater:request_success{finished_reason="abort"}`])
	t.Logf("resident %d MB before, %d MB after; heap %.1f and %.1f MB", before.rss>>20, after.rss>>20, float64(before.heap)/(1<<20), float64(after.heap)/(1<<20))
	if c.tally["left in the middle"] > 0 && m[`krater:request_success{finished_reason="abort"}`] == 0 {
		t.Error("no request of a client that left was given up")
	}
	if finished < 20 {
		t.Errorf("only %d answers came to their end", finished)
	}
}

// quiet closes idle connections and gives the number of goroutines that stay.
func (s *site) quiet() int {
	s.http.CloseIdleConnections()
	least := runtime.NumGoroutine()
	for range 20 {
		<-time.After(5 * time.Millisecond)
		least = min(least, runtime.NumGoroutine())
	}
	return least
}

// checkGoroutines waits until no more than n goroutines are left.
func (s *site) checkGoroutines(n int) {
	s.t.Helper()
	failed := s.t.Failed()
	s.poll(20*time.Second, func() error {
		s.http.CloseIdleConnections()
		if now := runtime.NumGoroutine(); now > n {
			return fmt.Errorf("%d goroutines, %d before", now, n)
		}
		return nil
	})
	if !failed && s.t.Failed() {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
}

type memory struct{ rss, heap int64 }

// measureMemory gives what is in use after a collection, in bytes.
func measureMemory() memory {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{rss: machine.Resident(), heap: int64(m.HeapAlloc)}
}
