package scheduler

import (
	"errors"
	"fmt"
	"testing"
)

// further is roomy with a place for a batch ahead.
func further() Config {
	cfg := roomy
	cfg.Ahead = true
	return cfg
}

// relay keeps a pipeline full: every step makes what batches there are and
// brings the oldest back. It does not allocate.
type relay struct {
	stepper
	flying []Batch
}

func (r *relay) fill() {
	for b, ok := r.core.Next(0); ok; b, ok = r.core.Next(0) {
		r.flying = append(r.flying, b)
	}
	r.core.Effects()
}

func (r *relay) step() error {
	r.fill()
	if len(r.flying) == 0 {
		return errors.New("nothing in flight")
	}
	b := r.flying[0]
	r.flying = r.flying[:copy(r.flying, r.flying[1:])]
	return r.done(b)
}

func (r *relay) steps(t testing.TB, n int) {
	t.Helper()
	for range n {
		if err := r.step(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAheadStaysFull: once the prompts are in, two batches are in flight for
// good, and each has a row of every stream, whenever that came in.
func TestAheadStaysFull(t *testing.T) {
	for _, streams := range []int{1, 2, 7, 256} {
		cfg := further()
		cfg.Blocks = 1 << 15
		c := newCore(t, cfg)
		r := &relay{stepper: stepper{core: c}}
		for id := range streams {
			mustAdd(t, c, Request{ID: uint64(id), PromptLen: 1 + id%5, MaxNew: 1000})
			r.steps(t, id%3)
		}
		r.steps(t, 20)
		was := c.Stats()
		for range 50 {
			r.fill()
			if len(r.flying) != 2 || r.flying[1].After != r.flying[0].ID {
				t.Fatalf("%d streams: %d in flight, %+v", streams, len(r.flying), c.Stats())
			}
			if b := r.flying[1]; b.Rows != streams || b.Decode != streams || b.Wanted != streams {
				t.Fatalf("%d streams: batch of %d rows, %d decode, %d wanted", streams, b.Rows, b.Decode, b.Wanted)
			}
			r.steps(t, 1)
		}
		is := c.Stats()
		if is.Batches-was.Batches != is.Ahead-was.Ahead || is.Ahead == was.Ahead {
			t.Errorf("%d streams: %d batches, %d of them ahead", streams, is.Batches-was.Batches, is.Ahead-was.Ahead)
		}
	}
}

// TestAheadArrival: at whatever moment of the steady state a request arrives, its
// prompt is in the next batch that is made, with every stream's row, and that is
// made when at most the two in flight have come back.
func TestAheadArrival(t *testing.T) {
	for full := range 2 {
		c := newCore(t, further())
		r := &relay{stepper: stepper{core: c}}
		for id := range uint64(5) {
			mustAdd(t, c, Request{ID: id, PromptLen: 3, MaxNew: 100})
		}
		r.steps(t, 9)
		if full == 1 {
			r.fill()
		}
		made, flying := c.Stats().Batches, len(r.flying)
		mustAdd(t, c, Request{ID: 100, PromptLen: 8, MaxNew: 5})
		r.steps(t, flying)
		if n := c.Stats().Batches; n != made {
			t.Fatalf("%d in flight: %d batches went ahead of the prompt", flying, n-made)
		}
		b := mustNext(t, c)
		if b.After != 0 || b.Decode != 5 || b.Rows != 13 {
			t.Fatalf("%d in flight: then %+v", flying, b)
		}
		if b = mustNext(t, c); b.After == 0 || b.Rows != 6 {
			t.Fatalf("%d in flight: no batch ahead of the prompt's end: %+v", flying, b)
		}
	}
}

// TestAheadOff: without the field no batch is ahead of another, whatever place
// there is.
func TestAheadOff(t *testing.T) {
	cfg := further()
	cfg.Ahead = false
	c := newCore(t, cfg)
	r := &relay{stepper: stepper{core: c}}
	mustAdd(t, c, Request{ID: 1, PromptLen: 3, MaxNew: 20})
	for range 10 {
		r.fill()
		if len(r.flying) != 1 || r.flying[0].After != 0 || r.flying[0].Spans[0].From != -1 {
			t.Fatalf("in flight: %+v", r.flying)
		}
		r.steps(t, 1)
	}
	if n := c.Stats().Ahead; n != 0 {
		t.Fatalf("%d batches ahead", n)
	}
}

// TestAheadOutcomes: a report that does not match leaves the batch ahead where it
// is, and one that fails the batch voids it.
func TestAheadOutcomes(t *testing.T) {
	c := newCore(t, further())
	mustAdd(t, c, Request{ID: 1, PromptLen: 3, MaxNew: 4})
	b, a := mustNext(t, c), mustNext(t, c)
	c.Effects()
	was := c.Stats()
	for name, err := range map[string]error{
		"no outcome": c.Done(b.ID, nil),
		"two tokens": c.Done(b.ID, []Outcome{{ID: 1, NewTokens: 2}}),
	} {
		if !errors.Is(err, ErrOutcome) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Done(a.ID, []Outcome{{ID: 1, NewTokens: 1}}); !errors.Is(err, ErrAhead) {
		t.Errorf("out of turn: %v", err)
	}
	if is := c.Stats(); is != was {
		t.Fatalf("refused reports changed %+v to %+v", was, is)
	}
	if err := c.Fail(b.ID, errors.New("lost"), true); err != nil {
		t.Fatal(err)
	}
	if e := c.Effects(); len(e) != 1 || e[0] != (Effect{Kind: Voided, Batch: a.ID, Slot: -1}) || e[0].Kind.String() != "voided" {
		t.Fatalf("effects %+v", e)
	}
	if err := c.Fail(a.ID, errors.New("lost"), true); !errors.Is(err, ErrUnknownBatch) {
		t.Fatalf("the void batch is known: %v", err)
	}
	if st := c.Stats(); st.Retries != 1 || st.FailedBatches != 2 {
		t.Fatalf("%+v", st)
	}
}

// TestAheadLateReader: a batch that is void does not change while an actor may still
// look at it.
func TestAheadLateReader(t *testing.T) {
	lose := map[string]func(c *Core, before, ahead uint64) error{
		"before": func(c *Core, before, _ uint64) error { return c.Fail(before, errors.New("lost"), false) },
		"ahead": func(c *Core, before, ahead uint64) error {
			err := c.Fail(ahead, errors.New("lost"), false)
			return errors.Join(err, c.Done(before, []Outcome{{ID: 1, NewTokens: 1}}))
		},
	}
	for name, f := range lose {
		t.Run(name, func(t *testing.T) {
			cfg := further()
			cfg.MicroBatches, cfg.PrefillBatches = 3, 3
			c := newCore(t, cfg)
			mustAdd(t, c, Request{ID: 1, PromptLen: 40, MaxNew: 4}, Request{ID: 2, PromptLen: 20, MaxNew: 4})
			before, _, late := mustNext(t, c), mustNext(t, c), mustNext(t, c)
			if late.After != before.ID {
				t.Fatalf("%+v", late)
			}
			want := fmt.Sprintf("%+v", late)
			if err := f(c, before.ID, late.ID); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, c, Request{ID: 4, PromptLen: 90, MaxNew: 4}, Request{ID: 5, PromptLen: 8, MaxNew: 4}, Request{ID: 6, PromptLen: 70, MaxNew: 4})
			mustNext(t, c)
			if got := fmt.Sprintf("%+v", late); got != want {
				t.Fatalf("the lost batch changed\nfrom %s\nto   %s", want, got)
			}
		})
	}
}

// TestAheadAllocatesNothing: neither the steady state nor requests that come and
// go beside it.
func TestAheadAllocatesNothing(t *testing.T) {
	c := newCore(t, further())
	for id := range uint64(30) {
		mustAdd(t, c, Request{ID: id, PromptLen: 5, MaxNew: 2000})
	}
	r := &relay{stepper: stepper{core: c}}
	id := uint64(100)
	work := func() {
		id++
		if err := c.Add(Request{ID: id, PromptLen: 60, MaxNew: 3, Deadline: 1 << 40}, 0); err != nil {
			t.Fatal(err)
		}
		r.steps(t, 7)
	}
	for range 50 {
		work()
	}
	was := c.Stats().Ahead
	if n := testing.AllocsPerRun(100, work); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if c.Stats().Ahead == was {
		t.Error("no batch was ahead")
	}
}

// TestHold: nothing goes ahead of a batch that is held, in its micro-batch.
func TestHold(t *testing.T) {
	c := newCore(t, divided(2, true))
	s := &stepper{core: c}
	mustAdd(t, c, Request{ID: 1, PromptLen: 3, MaxNew: 9}, Request{ID: 2, PromptLen: 3, MaxNew: 9})
	one, two := mustNext(t, c), mustNext(t, c)
	c.Hold(one.ID, true)
	c.Hold(99, true)
	if b := mustNext(t, c); b.After != two.ID {
		t.Fatalf("ahead of %d, want %d", b.After, two.ID)
	}
	if b, ok := c.Next(0); ok {
		t.Fatalf("ahead of a held batch: %+v", b)
	}
	if err := s.done(one); err != nil {
		t.Fatal(err)
	}
	b := mustNext(t, c)
	if b.MicroBatch != one.MicroBatch || b.After != 0 {
		t.Fatalf("then %+v", b)
	}
	c.Hold(b.ID, true)
	c.Hold(b.ID, false)
	if a := mustNext(t, c); a.After != b.ID {
		t.Fatalf("ahead of %d, want %d", a.After, b.ID)
	}
}
