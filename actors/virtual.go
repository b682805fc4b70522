package actors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/stages/load"
)

// Clock is the virtual time that simulated devices and the CPU share (hostsim.Clock).
type Clock interface {
	Now() time.Duration
	// Enter begins the turn of a thread whose time is t, which is not before that of the
	// turn before.
	Enter(t time.Duration)
}

// Virtual is a pipeline in virtual time. Every actor is a thread with its own time, which advances
// while it computes or waits for a device. A message is available from the time at which it was
// sent. One goroutine runs all actors, and always handles the message that can be handled first. So
// a run takes the virtual time that it would take on such devices with actors that work at the same
// time, and every run is the same. The trace has virtual times.
//
// It belongs to one goroutine. Requests are taken when they are submitted, and nothing is computed
// before Run.
type Virtual struct {
	*Pipeline
	host *virtual
}

// StartVirtual is like Start, for devices that take their time from clock.
func StartVirtual(ranks []load.Rank, opt Options, clock Clock) (*Virtual, error) {
	p, core, err := prepare(ranks, opt)
	if err != nil {
		return nil, err
	}
	h := &virtual{p: p, clock: clock, turn: clock.Now()}
	p.host = h
	if err := p.spawn(core); err != nil {
		return nil, errors.Join(err, p.halt())
	}
	h.turn = clock.Now() // tests of links and measurements took time
	return &Virtual{Pipeline: p, host: h}, nil
}

// Run continues until there is no work, and returns the pipeline's error if it has failed.
func (v *Virtual) Run() error {
	v.host.run()
	return v.Err()
}

// virtual hosts actors in virtual time.
type virtual struct {
	p       *Pipeline
	clock   Clock
	threads []*thread
	turn    time.Duration // when the last turn began
	bell    time.Duration // when the alarm rings; 0: not set
	running bool
}

// thread is an actor.
type thread struct {
	host    *virtual
	actor   string
	produce func() *shell
	shell   *shell
	free    time.Duration // when its current work ends
	queue   []arrival     // by time
}

// arrival is a message in a mailbox.
type arrival struct {
	at time.Duration
	m  any
}

func (t *thread) name() string { return t.actor }

// post implements address.
func (t *thread) post(m any, _ *worker) {
	a := arrival{t.host.clock.Now(), m}
	i := len(t.queue)
	for i > 0 && t.queue[i-1].at > a.at {
		i--
	}
	t.queue = slices.Insert(t.queue, i, a)
}

// spawn implements host.
func (h *virtual) spawn(name string, _ affinity, produce func() *shell) address {
	t := &thread{host: h, actor: name, produce: produce, shell: produce()}
	h.threads = append(h.threads, t)
	return t
}

// send implements host. A submitted request is taken at once, because its sender waits for the
// answer; other messages wait until the pipeline is at rest.
func (h *virtual) send(to address, m any) {
	t := to.(*thread)
	if _, ok := m.(*msg.Submit); ok && !h.running {
		h.handle(t, h.turn, m)
		return
	}
	t.post(m, nil)
	h.run()
}

func (h *virtual) now() int64 { return int64(h.clock.Now()) }

// alarm implements host.
func (h *virtual) alarm(in time.Duration) { h.bell = h.clock.Now() + max(1, in) }

// waiting implements host.
func (h *virtual) waiting(into map[string]int) {
	for _, t := range h.threads {
		into[t.actor] = len(t.queue)
	}
}

// halt implements host.
func (h *virtual) halt() error { return nil }

// run handles messages until none is left.
func (h *virtual) run() {
	if h.running {
		return // an actor has sent something from outside its turn
	}
	h.running = true
	defer func() { h.running = false }()
	for h.step() {
	}
}

// step handles the message that can be handled first; of several, that of the actor that was made
// first. It is false when there is none.
func (h *virtual) step() bool {
	var first *thread
	var at time.Duration
	for _, t := range h.threads {
		if len(t.queue) == 0 {
			continue
		}
		if start := max(t.free, t.queue[0].at); first == nil || start < at {
			first, at = t, start
		}
	}
	if h.bell != 0 && (first == nil || h.bell <= at) {
		bell := h.bell
		h.bell = 0
		h.handle(h.p.routes.schedule.(*thread), bell, &msg.Tick{})
		return true
	}
	if first == nil {
		return false
	}
	m := first.queue[0].m
	first.queue = slices.Delete(first.queue, 0, 1)
	h.handle(first, at, m)
	return true
}

// handle lets an actor handle a message that is available at a time, and makes a failed actor anew.
func (h *virtual) handle(t *thread, at time.Duration, m any) {
	h.turn = max(h.turn, t.free, at)
	h.clock.Enter(h.turn)
	defer func() {
		r := recover()
		t.free = h.clock.Now()
		if r == nil {
			return
		}
		t.shell = t.produce()
		if t == h.p.routes.schedule {
			h.p.fail(fmt.Errorf("%w: %s: %v", errFatal, t.actor, r))
		}
	}()
	t.shell.handle(m)
}
