package actors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
)

// sim hosts the actors of a pipeline on one goroutine, with a clock of its own:
// each step handles one message, of an actor that the seed chooses. The same
// seed gives the same order of everything.
type sim struct {
	t     testing.TB
	rng   *rand.Rand
	boxes []*box
	clock int64
	bell  int64 // when the alarm rings; 0: not set
	p     *Pipeline

	batches  map[*msg.Batch]bool // every one that was sent
	failures int
}

// box is an actor.
type box struct {
	actor   string
	produce func() *shell
	shell   *shell
	queue   []any
}

func (b *box) name() string { return b.actor }

// post implements address.
func (b *box) post(m any, _ *worker) { b.queue = append(b.queue, m) }

// newSim makes a pipeline over a loaded model live in a simulation.
func newSim(t testing.TB, l *loaded, seed uint64, o setup) *sim {
	t.Helper()
	p, core, err := prepare(l.placed(), l.options(t, o))
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 0)), clock: 1, p: p, batches: map[*msg.Batch]bool{}}
	p.host = s
	if err := p.spawn(core); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sim) spawn(name string, _ affinity, produce func() *shell) address {
	b := &box{actor: name, produce: produce, shell: produce()}
	s.boxes = append(s.boxes, b)
	return b
}

// send implements host. A request is taken at once, since its door waits.
func (s *sim) send(to address, m any) {
	if _, ok := m.(*msg.Submit); ok {
		s.handle(to.(*box), m)
		return
	}
	to.post(m, nil)
}

func (s *sim) now() int64             { return s.clock }
func (s *sim) alarm(in time.Duration) { s.bell = s.clock + int64(in) }
func (s *sim) waiting(map[string]int) {}
func (s *sim) halt() error            { return nil }

func (s *sim) box(name string) *box {
	for _, b := range s.boxes {
		if b.actor == name {
			return b
		}
	}
	panic("no actor " + name)
}

// step handles one message, or rings the alarm when there is none; false when
// nothing is left to do.
func (s *sim) step() bool {
	var ready []*box
	for _, b := range s.boxes {
		if len(b.queue) > 0 {
			ready = append(ready, b)
		}
	}
	s.clock += 1000
	switch {
	case len(ready) > 0:
		b := ready[s.rng.IntN(len(ready))]
		m := b.queue[0]
		b.queue = b.queue[1:]
		s.handle(b, m)
	case s.bell != 0:
		s.clock, s.bell = max(s.clock, s.bell), 0
		s.handle(s.box("schedule"), &msg.Tick{})
	default:
		return false
	}
	return true
}

// handle gives a message to an actor and makes a failed one anew.
func (s *sim) handle(b *box, m any) {
	if batch, ok := m.(*msg.Batch); ok {
		s.batches[batch] = true
	}
	defer func() {
		if r := recover(); r != nil {
			if b.actor == "schedule" {
				panic(r)
			}
			s.failures++
			b.shell = b.produce()
		}
	}()
	b.shell.handle(m)
}

func (s *sim) schedule() *scheduleNode {
	return bare(s.box("schedule").shell.node).(*scheduleNode)
}

// bare is a node without its hook.
func bare(n node) node {
	if h, ok := n.(hook); ok {
		return h.node
	}
	return n
}

// run goes on until nothing is left to do, and checks the scheduler's books
// after every step.
func (s *sim) run() error {
	for range 1_000_000 {
		if !s.step() {
			return s.atRest()
		}
		if err := s.schedule().core.Check(); err != nil {
			return err
		}
	}
	return errors.New("it does not end")
}

// atRest checks that everything has come back.
func (s *sim) atRest() error {
	n := s.schedule()
	st := n.core.Stats()
	switch {
	case !n.core.Idle() || len(n.live) > 0 || len(s.p.outputs) > 0:
		return fmt.Errorf("requests are left: %d in the core, %d live, %d outputs", st.Running()+st.Waiting+st.Ending, len(n.live), len(s.p.outputs))
	case st.BlocksUsed != 0:
		return fmt.Errorf("%d KV blocks are left", st.BlocksUsed)
	case len(n.credits) != len(n.batches) || n.flying != 0 || len(n.lost) != 0:
		return fmt.Errorf("%d of %d batches are free, %d flying, %d lost", len(n.credits), len(n.batches), n.flying, len(n.lost))
	}
	for b := range s.batches {
		if b.Held() {
			return fmt.Errorf("batch %d is held", b.ID)
		}
	}
	for _, b := range s.boxes {
		if h, ok := bare(b.shell.node).(holder); ok && len(h.held()) > 0 {
			return fmt.Errorf("%s keeps %d batches", b.actor, len(h.held()))
		}
	}
	return nil
}

// drainEvents reads what an answer holds, without waiting.
func drainEvents(t testing.TB, st engine.Stream) []engine.Event {
	t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var events []engine.Event
	for {
		e, err := st.Next(over)
		switch {
		case err == nil:
			events = append(events, e)
		case errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
			return events
		default:
			t.Fatal(err)
		}
	}
}

// ending gives the ids of an answer and its last event, and fails unless there
// is exactly one end.
func ending(t testing.TB, events []engine.Event) (ids []int32, last engine.Event) {
	t.Helper()
	ends := 0
	for _, e := range events {
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
		if e.Kind == engine.Done || e.Kind == engine.Failed {
			ends++
		}
		last = e
	}
	if ends != 1 || last.Kind != engine.Done && last.Kind != engine.Failed {
		t.Errorf("%d ends in %+v", ends, events)
	}
	return ids, last
}
