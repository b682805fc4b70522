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

// host is what runs the actors of a pipeline: the actor library, or in tests a
// single goroutine that chooses whose turn it is.
type host interface {
	// spawn starts an actor; produce makes the shell of each incarnation. Nothing
	// is sent before all actors exist.
	spawn(name string, produce func() *shell) *actor.PID
	// send takes a message to an actor from outside; after halt it is dropped.
	send(to *actor.PID, m any)
	now() int64 // the trace's clock
	// alarm sends the schedule actor a Tick, instead of the one set before.
	alarm(in time.Duration)
	// waiting notes how many messages wait for each actor.
	waiting(into map[string]int)
	// halt stops all actors in the order they were spawned and returns when none
	// runs any more, or with an error when one is stuck. It is called once.
	halt() error
}

// library hosts actors with protoactor.
type library struct {
	system *actor.ActorSystem
	root   *actor.RootContext // spawns under the supervisor
	actors []*hosted
	wg     sync.WaitGroup // of their goroutines
	timer  *time.Timer    // of the alarm

	mu     sync.RWMutex // halted is set under Lock, sends go on under RLock
	halted bool
}

type hosted struct {
	pid     *actor.PID
	mailbox actor.Mailbox
	runner  *resident
}

func newLibrary(p *Pipeline) *library {
	h := &library{system: actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slogLogger(p.log) }),
		// The throttle of the dead letters' log keeps a goroutine for so long.
		actor.WithDeadLetterThrottleInterval(time.Millisecond),
	)}
	h.root = h.system.Root.Copy().WithGuardian(newSupervisor(p))
	h.timer = time.AfterFunc(time.Hour, func() { h.send(p.routes.schedule, &msg.Tick{}) })
	h.timer.Stop()
	return h
}

// slogLogger gives the actor library a logger whose lines come out as ours.
func slogLogger(log zerolog.Logger) *slog.Logger { return slog.New(&logBridge{log: log}) }

// spawn implements host. The mailbox is unbounded, since a full one makes its
// sender spin: credits bound what is in flight.
func (h *library) spawn(name string, produce func() *shell) *actor.PID {
	a := &hosted{mailbox: actor.Unbounded()(), runner: newResident(&h.wg)}
	pid, err := h.root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return produce() },
		actor.WithDispatcher(a.runner), actor.WithMailbox(func() actor.Mailbox { return a.mailbox })), name)
	if err != nil {
		panic(err) // two actors of one name: a programmer error
	}
	a.pid = pid
	h.actors = append(h.actors, a)
	return pid
}

// send implements host.
func (h *library) send(to *actor.PID, m any) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.halted {
		h.system.Root.Send(to, m)
	}
}

func (h *library) now() int64 { return trace.Now() }

// alarm implements host.
func (h *library) alarm(in time.Duration) { h.timer.Reset(in) }

// waiting implements host.
func (h *library) waiting(into map[string]int) {
	for _, a := range h.actors {
		into[a.pid.Id] = a.mailbox.UserMessageCount()
	}
}

// halt implements host.
func (h *library) halt() error {
	h.timer.Stop()
	h.mu.Lock()
	h.halted = true
	h.mu.Unlock()
	var err error
	for _, a := range h.actors {
		if e := h.system.Root.StopFuture(a.pid).Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("stopping %s: %w", a.pid.Id, e))
		}
	}
	for _, a := range h.actors {
		a.runner.close()
	}
	if err == nil {
		h.wg.Wait()
	}
	h.system.Shutdown()
	return err
}
