package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/scheduler"
	"krater/stages/compare"
)

// until runs a simulation up to the step after which ok holds.
func (s *sim) until(ok func() bool) {
	s.t.Helper()
	for !ok() {
		if !s.step() {
			s.t.Fatal("the simulation ended before")
		}
	}
}

// queued reports whether an actor has a batch before it that carries a request.
func (s *sim) queued(actor string, id uint64) bool {
	for _, m := range s.box(actor).queue {
		if r, ok := m.(*msg.Reply); ok {
			m = r.Batch
		}
		if b, ok := m.(*msg.Batch); ok {
			for i := range b.Step.Spans {
				if b.Step.Spans[i].Seq == id {
					return true
				}
			}
		}
	}
	return false
}

// phases are the points of a request's life at which tests leave it. reach runs
// the simulation until request 1 is there.
var phases = []struct {
	name  string
	reach func(s *sim, st engine.Stream)
}{
	{"queued", func(*sim, engine.Stream) {}},
	{"prefill at the first group", func(s *sim, _ engine.Stream) { s.until(func() bool { return s.queued("group0", 1) }) }},
	{"prefill at the second group", func(s *sim, _ engine.Stream) { s.until(func() bool { return s.queued("group1", 1) }) }},
	{"decode at the first group", func(s *sim, _ engine.Stream) {
		s.until(func() bool { return s.tokens(1) >= 3 })
		s.until(func() bool { return s.queued("group0", 1) })
	}},
	{"decode at the sampler", func(s *sim, _ engine.Stream) {
		s.until(func() bool { return s.tokens(1) >= 3 })
		s.until(func() bool { return s.queued("sample", 1) })
	}},
	{"decode, come back", func(s *sim, _ engine.Stream) {
		s.until(func() bool { return s.tokens(1) >= 3 })
		s.until(func() bool { return s.queued("schedule", 1) })
	}},
	{"ended", func(s *sim, st engine.Stream) { s.until(func() bool { return st.(*answer).over() }) }},
}

// tokens is how many tokens the schedule actor has of a request.
func (s *sim) tokens(id uint64) int {
	r := s.schedule().live[id]
	if r == nil {
		return 0
	}
	return len(r.tokens) - r.submit.Request.PromptLen
}

// over reports whether the last event was pushed.
func (a *answer) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// TestCancelAtEveryPhase: a client leaves a request, alone or beside another
// one. Its blocks are free once its batch is back, no operator runs for it any
// more, and its neighbour has the golden's ids.
func TestCancelAtEveryPhase(t *testing.T) {
	g := lite(t)
	o := setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, chunk: 16, share: 16, limits: small(3), faults: &faults{}}.defaults()
	l := loadModel(t, o)
	for _, ph := range phases {
		for _, close := range []bool{false, true} {
			for _, beside := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/close=%v/beside=%v", ph.name, close, beside), func(t *testing.T) {
					s := newSim(t, l, 1, o)
					defer s.p.halt()
					leave(t, s, l.open(t, s.p), g, o.faults, ph.reach, close, beside)
				})
			}
		}
	}
}

func leave(t *testing.T, s *sim, gw *Gateway, g *compare.Golden, f *faults, reach func(*sim, engine.Stream), closes, beside bool) {
	t.Helper()
	p, q := g.Prompts[1], g.Prompts[2]
	st, err := gw.Submit(context.Background(), greedy(p.IDs, len(p.Greedy)))
	if err != nil {
		t.Fatal(err)
	}
	var other engine.Stream
	if beside {
		if other, err = gw.Submit(context.Background(), greedy(q.IDs, len(q.Greedy))); err != nil {
			t.Fatal(err)
		}
	}
	reach(s, st)
	ended := st.(*answer).over()
	for range 2 {
		if closes {
			st.Close()
		} else {
			st.(*answer).cancel()
		}
	}
	ops := 0
	f.arm(func(string, int) bool { ops++; return false })
	defer f.arm(nil)
	// The schedule actor hears of it.
	s.until(func() bool { return len(s.box("schedule").queue) == 0 })
	if n := s.schedule().core.Stats(); !ended && n.Ended[scheduler.Cancelled] != 1 {
		t.Errorf("%d requests are cancelled", n.Ended[scheduler.Cancelled])
	}
	batches := s.schedule().core.Stats().Batches
	ops = 0
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	if !beside && (ops > 0 || s.schedule().core.Stats().Batches != batches) {
		t.Errorf("%d operators and %d batches more for nobody", ops, s.schedule().core.Stats().Batches-batches)
	}
	if beside {
		if ids, last := ending(t, drainEvents(t, other)); last.Finish != engine.FinishLength || !slices.Equal(ids, q.Greedy) {
			t.Errorf("the neighbour ended with %+v and %v", last, ids)
		}
	}
	events := drainEvents(t, st)
	if closes {
		if len(events) != 0 {
			t.Errorf("after Close: %+v", events)
		}
		return
	}
	ids, last := ending(t, events)
	want := engine.FinishCancelled
	if ended {
		want = engine.FinishLength
	}
	if last.Finish != want || last.Usage.Completion != len(ids) || !slices.Equal(ids, p.Greedy[:len(ids)]) {
		t.Errorf("ended with %+v after %v", last, ids)
	}
	if n := s.p.meters.snapshot().Finished["abort"]; !ended && n != 1 {
		t.Errorf("%d aborts are counted", n)
	}
}

// gate holds the first group until it is opened.
type gate struct {
	reached chan struct{} // gets a token from each batch message that waits
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}, 64), open: make(chan struct{})} }

func (g *gate) wrap(actor string, n node) node {
	if actor != "group0" {
		return n
	}
	return hook{n, func(_ *turn, m any) {
		if _, ok := m.(*msg.Batch); ok {
			g.reached <- struct{}{}
			<-g.open
		}
	}}
}

// TestLeavingWhileTheDeviceWorks: a context that ends and a deadline that comes
// while the first group is busy end a request at once, also when it is the one
// that the group is busy with.
func TestLeavingWhileTheDeviceWorks(t *testing.T) {
	g := lite(t)
	gate := newGate()
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: gate.wrap})
	gw := r.gateway(t)
	submit := func(ctx context.Context, deadline time.Time) engine.Stream {
		t.Helper()
		req := greedy(g.Prompts[1].IDs, 24)
		req.Deadline = deadline
		st, err := gw.Submit(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	end := func(st engine.Stream) engine.Event {
		t.Helper()
		events, err := everything(st)
		if err != nil {
			t.Fatal(err)
		}
		_, last := ending(t, events)
		return last
	}
	var no *engine.Error
	past := greedy([]int32{5}, 1)
	past.Deadline = time.Now().Add(-time.Second)
	if _, err := gw.Submit(context.Background(), past); !errors.As(err, &no) || no.Kind != engine.Timeout {
		t.Errorf("a deadline in the past: %v", err)
	}
	ctx, leave := context.WithCancel(context.Background())
	leave()
	if _, err := gw.Submit(ctx, past); !errors.As(err, &no) || no.Kind != engine.Cancelled {
		t.Errorf("a context that is over: %v", err)
	}
	soon := time.Now().Add(500 * time.Millisecond) // two requests are accepted before, on a loaded machine as well
	running := submit(context.Background(), soon)
	<-gate.reached
	for _, st := range []engine.Stream{submit(context.Background(), soon), running} {
		if last := end(st); last.Kind != engine.Failed || last.Err.Kind != engine.Timeout {
			t.Errorf("after the deadline: %+v", last)
		}
	}
	ctx, leave = context.WithCancel(context.Background())
	waiting := submit(ctx, time.Time{})
	leave()
	if last := end(waiting); last.Finish != engine.FinishCancelled {
		t.Errorf("left while waiting: %+v", last)
	}
	close(gate.open)
	ctx, leave = context.WithCancel(context.Background())
	answering := submit(ctx, time.Time{})
	for first := false; !first; {
		e, err := answering.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		first = e.Kind == engine.Tokens
	}
	leave()
	events, err := everything(answering)
	if err != nil {
		t.Fatal(err)
	}
	// It may have been faster than we.
	if _, last := ending(t, events); last.Kind != engine.Done || last.Finish != engine.FinishCancelled && last.Finish != engine.FinishLength {
		t.Errorf("left while it answered: %+v", last)
	}
	rest(t, r, gw)
}

// TestDeadlines: a request whose time has come ends with a timeout, in the queue
// without having started, in a batch with the tokens it has.
func TestDeadlines(t *testing.T) {
	g := lite(t)
	o := setup{dir: golden("deepseek_v2_lite"), limits: small(1)}.defaults()
	l := loadModel(t, o)
	s := newSim(t, l, 1, o)
	defer s.p.halt()
	gw := l.open(t, s.p)
	submit := func(id uint64, in int64) *answer {
		p := g.Prompts[1]
		req := greedy(p.IDs, len(p.Greedy))
		sampler := samplerOf(t, gw, req)
		a := newAnswer(len(p.IDs))
		out := newOutput(gw, req, a, s.clock)
		out.begin(id)
		s.handle(s.box("schedule"), &msg.Submit{
			Request: scheduler.Request{ID: id, PromptLen: len(p.IDs), MaxNew: len(p.Greedy), Deadline: s.clock + in},
			Prompt:  slices.Clone(p.IDs), Sampler: sampler, Output: out, Reply: make(chan error, 1),
		})
		return a
	}
	const second = 1e9
	running := submit(101, second)
	waiting := submit(102, second/2)
	s.until(func() bool { return s.tokens(101) >= 3 })
	s.clock += second / 2
	s.until(func() bool { return waiting.over() })
	if running.over() {
		t.Error("the running request ended with the waiting one")
	}
	s.clock += second / 2
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*answer{running, waiting} {
		ids, last := ending(t, drainEvents(t, a))
		if last.Kind != engine.Failed || last.Err.Kind != engine.Timeout || !strings.Contains(last.Err.Message, "deadline") {
			t.Errorf("ended with %+v", last)
		}
		if (len(ids) >= 3) != (a == running) {
			t.Errorf("%d tokens before the timeout", len(ids))
		}
	}
}
