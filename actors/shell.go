package actors

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
)

// node is the behaviour of one actor: a type switch over messages that calls
// methods which can be tested without an actor system. One goroutine runs a
// node; a node is made anew after a failure.
type node interface {
	receive(c *turn, m any)
}

// holder is a node that keeps batches across messages. When it fails, the shell
// answers for what it held.
type holder interface {
	held() []*msg.Batch
}

// starter is a node that needs a call when its actor has started.
type starter interface {
	started(c *turn)
}

// turn is what a node may do while it handles one message.
type turn struct {
	ctx    actor.Context
	routes *routes
	log    *zerolog.Logger
	ring   *trace.Ring
}

// send hands m to another actor. m is immutable from here on, unless it is a
// batch, which then belongs to the receiver.
func (t *turn) send(to *actor.PID, m any) {
	if s, ok := m.(msg.Stamped); ok {
		s.Stamp(trace.Now())
	}
	t.ctx.Send(to, m)
}

// routes are the addresses of the live pipeline. Filled once before the first
// message is sent; an address survives the restart of its actor.
type routes struct {
	schedule, embed, head, sample, stream *actor.PID
	groups, splits, merges                []*actor.PID // one per layer group
	links                                 []*actor.PID // links[i] leads to groups[i]; links[0] is nil
	pools                                 []*actor.PID
}

// after is where a batch goes after group i: the link to the next group, or the head.
func (r *routes) after(group int) *actor.PID {
	if group+1 < len(r.groups) {
		return r.links[group+1]
	}
	return r.head
}

// shell is the actor around a node: it times every message into the actor's
// trace ring and turns a panic into a typed failure for the batch's owner
// before the supervisor sees it.
type shell struct {
	name  string
	kind  trace.Kind
	node  node
	turn  turn
	event trace.Event // of the message in hand
}

// newShell gives the producer of an actor: make runs again for each incarnation.
func (p *Pipeline) newShell(name string, kind trace.Kind, ring *trace.Ring, make func() node) func() actor.Actor {
	log := p.log.With().Str("actor", name).Logger()
	return func() actor.Actor {
		return &shell{name: name, kind: kind, node: make(), turn: turn{routes: &p.routes, log: &log, ring: ring}}
	}
}

// Receive implements actor.Actor.
func (s *shell) Receive(ctx actor.Context) {
	s.turn.ctx = ctx
	switch m := ctx.Message().(type) {
	case *actor.Started:
		if st, ok := s.node.(starter); ok {
			st.started(&s.turn)
		}
	case *actor.Restarting, *actor.Stopping, *actor.Stopped, *actor.Terminated:
	default:
		s.handle(m)
	}
}

func (s *shell) handle(m any) {
	e := &s.event
	*e = trace.Event{Kind: s.kind, Layer: -1, Started: trace.Now()}
	// Described first: by the end of receive the message has a new owner.
	if d, ok := m.(msg.Traced); ok {
		d.Describe(e)
	} else {
		e.Kind = trace.Control
	}
	defer s.catch(m)
	s.node.receive(&s.turn, m)
	e.Ended = trace.Now()
	s.turn.ring.Record(e)
}

// catch reports a panic to the owner of what was being worked on, then lets it
// go on to the supervisor. The message in hand is lost by then, so is the
// node's state.
func (s *shell) catch(m any) {
	r := recover()
	if r == nil {
		return
	}
	cause := fmt.Errorf("%s failed: %v", s.name, r)
	s.turn.log.Error().Str("cause", fmt.Sprint(r)).Bytes("stack", debug.Stack()).Msg("actor failed")
	s.event.Kind, s.event.Ended = trace.Failure, trace.Now()
	s.turn.ring.Record(&s.event)
	told := map[*msg.Batch]bool{}
	tell := func(b *msg.Batch) {
		if b != nil && !told[b] {
			told[b] = true
			s.turn.ctx.Send(s.turn.routes.schedule, &msg.Failed{Batch: b, Cause: cause})
		}
	}
	if c, ok := m.(msg.Carrier); ok {
		tell(c.Carried())
	}
	if h, ok := s.node.(holder); ok {
		for _, b := range h.held() {
			tell(b)
		}
	}
	panic(r)
}

// restartsMax in restartsWithin is what a stage may fail before the pipeline is
// given up: a fault that comes back with every batch will not go away.
const (
	restartsMax    = 10
	restartsWithin = 10 * time.Second
)
