package actors

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/scheduler/files"
)

// node is the behaviour of one actor: a type switch over messages that calls
// methods which can be tested without an actor system. One goroutine runs a
// node; a failure replaces it by a new one.
type node interface {
	receive(c *turn, m any)
}

// holder is a node that keeps batches across messages. When it fails, the shell
// answers for what it held.
type holder interface {
	held() []*msg.Batch
}

// turn gives a node what it may use while it handles one message.
type turn struct {
	routes *routes
	log    *zerolog.Logger
	ring   *trace.Ring
	event  *trace.Event // of the current message; a node may add to it
	now    func() int64 // the trace's clock
	sent   int64        // when the node last sent something; 0: it has computed since
	box    *mailbox     // of the actor; nil in tests without an actor system
}

// send hands m to another actor. m is immutable from here on, unless it is a batch, which then
// belongs to the receiver.
func (t *turn) send(to address, m any) {
	if h, ok := m.(msg.Holding); ok {
		h.Hold()
	}
	if s, ok := m.(msg.Stamped); ok && s.Noted() {
		t.sent = t.now()
		s.Stamp(t.sent)
	}
	to.post(m, t.box.sender())
}

// routes are the addresses of the live pipeline, filled in once before the first message is sent.
type routes struct {
	schedule, embed, head, sample, stream address
	groups, splits, merges                []address // one per layer group
	links                                 []address // links[i] leads to groups[i]; links[0] is nil
	pools                                 []address
	helper                                address // nil: there is none

	out   address   // to other processes; nil: no layers are there
	in    address   // from them, on the leader
	sides []address // on the leader: one for each of them
	keep  []address // actors that may keep a batch: each answers a msg.Forget
}

// after is where a batch goes after group i: the link to the next group, or the head.
func (r *routes) after(group int) address {
	switch {
	case group+1 < len(r.groups):
		return r.links[group+1]
	case r.out != nil:
		return r.out
	}
	return r.head
}

// shell is the actor around a node: it times every message into the actor's trace ring, and turns a
// panic into a typed failure for the batch's owner before the supervisor sees it.
type shell struct {
	name   string
	kind   trace.Kind
	device uint8 // where it computes, as the trace numbers devices
	node   node
	turn   turn
	event  trace.Event // of the current message
}

// newShell returns the producer of an actor: fresh makes a node for each incarnation.
func (p *Pipeline) newShell(name string, kind trace.Kind, device uint8, fresh func() node) func() *shell {
	log := p.log.With().Str("actor", name).Logger()
	ring := p.trace.Ring(name)
	return func() *shell {
		s := &shell{name: name, kind: kind, device: device, node: fresh()}
		if p.opt.wrap != nil {
			s.node = p.opt.wrap(name, s.node)
		}
		s.turn = turn{routes: &p.routes, log: &log, ring: ring, event: &s.event, now: p.host.now}
		return s
	}
}

// Receive implements actor.Actor.
func (s *shell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started, *actor.Restarting, *actor.Stopping, *actor.Stopped, *actor.Terminated:
	default:
		s.handle(m)
	}
}

// handle passes one message to the node.
func (s *shell) handle(m any) {
	debug.SetPanicOnFault(true) // of mapped weights whose file was cut; for this goroutine, which is the pipeline's
	s.turn.sent = 0
	e := &s.event
	noted := true
	if st, ok := m.(msg.Stamped); ok {
		noted = st.Noted() // asked first, because the message gets a new owner
	}
	*e = trace.Event{Kind: s.kind, Device: s.device, Layer: -1}
	if noted {
		e.Started = s.turn.now()
	}
	// Described first: by the end of receive the message has a new owner.
	if d, ok := m.(msg.Traced); ok {
		d.Describe(e)
	} else {
		e.Kind = trace.Control
	}
	if h, ok := m.(msg.Holding); ok {
		defer h.Release() // after catch has reported a failure
	}
	defer s.catch(m)
	s.node.receive(&s.turn, m)
	if !noted {
		return
	}
	// Most nodes end with a send: that time is not read twice.
	if e.Ended = s.turn.sent; e.Ended == 0 {
		e.Ended = s.turn.now()
	}
	s.turn.ring.Record(e)
}

// repeatable reports whether a panic is an error from a device or a stream, so that the same step
// may succeed the next time. A bug will not pass, and neither will lost weights.
func repeatable(r any) bool {
	err, ok := r.(error)
	if !ok {
		return false
	}
	_, bug := errors.AsType[runtime.Error](err)
	_, lost := errors.AsType[*files.LostError](files.Caught(r))
	return !bug && !lost
}

// catch reports a panic to the owner of the current work, then passes it on to the supervisor. The
// current message is lost by then, and so is the node's state.
func (s *shell) catch(m any) {
	r := recover()
	if r == nil {
		return
	}
	cause := fmt.Errorf("%s failed: %w", s.name, files.Caught(r))
	s.turn.log.Error().Str("cause", fmt.Sprint(r)).Bytes("stack", debug.Stack()).Msg("actor failed")
	s.event.Kind, s.event.Ended, s.event.Others = trace.Failure, s.turn.now(), 0
	if s.event.Started == 0 { // of a batch that is not noted
		s.event.Started, s.event.Enqueued = s.event.Ended, 0
	}
	s.turn.ring.Record(&s.event)
	var told []*msg.Batch
	tell := func(b *msg.Batch) {
		for _, other := range told {
			if other == b {
				return
			}
		}
		told = append(told, b)
		s.turn.send(s.turn.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: cause, Repeatable: repeatable(r)})
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
