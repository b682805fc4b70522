package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
)

// host runs the actors of a pipeline: the actor library does, or a single goroutine that chooses
// which actor is next, by virtual time (virtual.go) or, in tests, by chance.
type host interface {
	// spawn starts an actor; produce makes the shell of each incarnation. Nothing
	// is sent before all actors exist.
	spawn(name string, b affinity, produce func() *shell) address
	// send takes a message to an actor from outside; after halt it is dropped.
	send(to address, m any)
	now() int64 // the trace's clock
	// alarm sends the schedule actor a Tick, instead of the one set before.
	alarm(in time.Duration)
	// waiting notes how many messages wait for each actor.
	waiting(into map[string]int)
	// halt stops all actors and returns when none runs any more, or with an error
	// when one is stuck. It is called once.
	halt() error
}

// affinity selects the goroutine that an actor runs on, see dispatcher.go.
type affinity uint8

const (
	ownGoroutine affinity = iota
	anyWorker
	ownOrWorker // its own, or that of a worker
)

// library hosts actors with protoactor.
type library struct {
	system  *actor.ActorSystem
	root    *actor.RootContext // spawns under the supervisor
	workers *workerSet
	actors  []*hosted
	wg      sync.WaitGroup // of the goroutines
	timer   *time.Timer    // of the alarm

	mu     sync.RWMutex // halted is set under Lock, sends go on under RLock
	halted bool
}

type hosted struct {
	pid     *actor.PID
	mailbox *mailbox
	own     *ownThread // nil where a worker runs it
}

// newLibrary makes a host for the pipeline p.
func newLibrary(p *Pipeline) *library {
	h := &library{system: actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slogLogger(p.log) }),
		// The throttle of the dead letters' log keeps a goroutine for so long.
		actor.WithDeadLetterThrottleInterval(time.Millisecond),
	)}
	h.root = h.system.Root.Copy().WithGuardian(newSupervisor(p))
	bp := p.opt.Blueprint
	// One that runs ahead has more batches in flight, which must not wait for workers that
	// wait for the device.
	h.workers = newWorkers(p.scheduler.Depth(), 5+2*len(bp.Groups), &h.wg)
	h.timer = time.AfterFunc(time.Hour, func() { h.send(p.routes.schedule, &msg.Tick{}) })
	h.timer.Stop()
	return h
}

// slogLogger gives the actor library a logger whose lines come out as ours.
func slogLogger(log zerolog.Logger) *slog.Logger { return slog.New(&logBridge{log: log}) }

// spawn implements host.
func (h *library) spawn(name string, b affinity, produce func() *shell) address {
	a := &hosted{mailbox: &mailbox{actor: name, place: h.workers}}
	if b != anyWorker {
		a.own = newOwnThread(b == ownOrWorker, &h.wg)
		a.mailbox.place = a.own
	}
	fresh := func() actor.Actor {
		s := produce()
		s.turn.box = a.mailbox
		return s
	}
	pid, err := h.root.SpawnNamed(actor.PropsFromProducer(fresh, actor.WithMailbox(func() actor.Mailbox { return a.mailbox })), name)
	if err != nil {
		panic(err) // two actors of one name: a programmer error
	}
	a.pid = pid
	h.actors = append(h.actors, a)
	return a.mailbox
}

// send implements host.
func (h *library) send(to address, m any) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.halted {
		to.post(m, nil)
	}
}

func (h *library) now() int64 { return trace.Now() }

// alarm implements host.
func (h *library) alarm(in time.Duration) { h.timer.Reset(in) }

// waiting implements host.
func (h *library) waiting(into map[string]int) {
	for _, a := range h.actors {
		into[a.mailbox.actor] = a.mailbox.UserMessageCount()
	}
}

// halt implements host.
func (h *library) halt() error {
	h.timer.Stop()
	h.mu.Lock()
	h.halted = true
	h.mu.Unlock()
	var stops []*actor.Future
	for _, a := range h.actors {
		stops = append(stops, h.system.Root.StopFuture(a.pid))
	}
	var err error
	for i, stop := range stops {
		if e := stop.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("stopping %s: %w", h.actors[i].pid.Id, e))
		}
	}
	for _, a := range h.actors {
		if a.own != nil {
			a.own.close()
		}
	}
	h.workers.close()
	if err == nil {
		h.wg.Wait()
	}
	h.system.Shutdown()
	return err
}
