package actors

import (
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
)

// scheduleNode drives the scheduler's core: it owns every request from Submit to Released and every
// batch that is not in flight. After each message it sends the batches that the core makes, as long as
// there are credits (free batches).
type scheduleNode struct {
	sender
	core    *scheduler.Core
	meters  *meters
	log     *zerolog.Logger        // of the turn
	now     func() int64           // the trace's clock
	alarm   func(in time.Duration) // sends a Tick, instead of the one set before
	credits []*msg.Batch           // free batches
	flying  int                    // batches in flight
	lost    []*msg.Batch           // failed batches that an actor may still touch
	renew   func(b *msg.Batch)     // gives a lost batch rows that no copy touches

	live  map[uint64]*record // accepted and not released
	slots []*record          // by the core's slot

	resting   bool // no batch is made any more, and those in flight are forgotten
	collected bool // the next pipeline has the requests

	raws    []*msg.Raw // raw steps that wait for an idle pipeline
	raw     bool       // one is in flight
	rawLast uint64
	epoch   uint32 // rises with every lost step

	ahead    bool                 // the core makes batches whose tokens are still being chosen
	placed   bool                 // a rank's experts are placed on its device
	shares   *placement.Placement // whose experts exchange memory with KV blocks; nil: none do
	trace    *trace.Registry      // nil, in tests: it is not told which requests are in a batch
	spans    []trace.Rider        // reused
	outcomes []scheduler.Outcome
	deliver  *msg.Deliver
	drained  []chan struct{}
	wake     int64         // when the alarm rings; 0: not set
	deadline time.Duration // of workers; 0: there are none
}

// record holds the driver's state of one request.
type record struct {
	submit   *msg.Submit
	tokens   []int32 // prompt, then what was generated
	ended    bool
	slot     int   // where the device keeps its history
	stored   int   // how many of its tokens the device has there, or will have; below 0: nothing
	scoredTo int   // the last position of the prompt whose score was passed on
	cause    error // of its own failure
}

func newScheduleNode(core *scheduler.Core, stream device.Stream, m *meters, h host, batches []*msg.Batch, slots int) *scheduleNode {
	return &scheduleNode{
		sender: sender{batches: batches, stream: stream},
		core:   core, meters: m, now: h.now, alarm: h.alarm, credits: slices.Clone(batches), live: map[uint64]*record{}, slots: make([]*record, slots),
		renew: func(*msg.Batch) {},
	}
}

func (n *scheduleNode) receive(c *turn, m any) {
	now := n.now()
	n.log = c.log
	if m, ok := m.(*msg.Prefixes); ok {
		m.Reply <- n.core.Prefixes(m.Domain)
		return
	}
	if n.resting {
		n.rest(m, now)
		n.effects()
		n.flush(c, now)
		return
	}
	switch m := m.(type) {
	case *msg.Reply:
		n.returned(m)
	case *msg.Submit:
		n.submit(m, now)
	case *msg.Cancel:
		n.core.Cancel(m.ID, m.Why)
	case *msg.Raw:
		n.raws = append(n.raws, m)
	case *msg.Failed:
		n.failed(m)
	case *msg.Forgotten:
		n.forgotten(m.Batch)
	case *msg.Tick:
		n.wake = 0
		n.core.Tick(now)
		n.watch(c)
	case *msg.Drain:
		n.drain(m)
	case *msg.Adopt:
		n.adopt(m)
	case *msg.Suspend:
		n.suspend(m)
		n.flush(c, now)
		return
	}
	for again := true; again; {
		n.pump(now)
		again = n.sendFilled(c, c.routes.embed, n.refused)
	}
	retire(c, n.lost)
	n.flush(c, now)
	n.arm(now)
}

// submit hands a request to the core and answers its sender.
func (n *scheduleNode) submit(m *msg.Submit, now int64) {
	r := m.Request
	r.Prompt = m.Prompt
	err := n.core.Add(r, now)
	if err == nil {
		n.live[m.Request.ID] = &record{submit: m, tokens: m.Prompt}
		before, _ := n.core.Position(m.Request.ID)
		n.item(msg.Delivery{Kind: msg.DeliverQueued, ID: m.Request.ID, Output: m.Output, Count: before})
	}
	m.Reply <- err
}

// pump fills batches while the core has work and a credit is free. A raw step
// goes first, once all credits are here: it uses the same KV blocks.
func (n *scheduleNode) pump(now int64) {
	for len(n.credits) > 0 {
		if n.raw || len(n.raws) > 0 && len(n.credits) < len(n.batches) {
			break
		}
		if len(n.raws) > 0 {
			n.effects()
			n.fillRaw()
			continue
		}
		n.hold()
		n.exchange()
		d, ok := n.core.Next(now)
		n.effects()
		if !ok {
			if n.exchange() { // for what did not fit
				continue
			}
			return
		}
		n.fill(d)
	}
	n.effects()
}

// effects carries out what the core decided.
func (n *scheduleNode) effects() {
	for _, e := range n.core.Effects() {
		r := n.live[e.ID]
		switch e.Kind {
		case scheduler.Voided:
			n.giveUp(e.Batch)
		case scheduler.Started:
			n.slots[e.Slot], r.slot, r.stored = r, e.Slot, -1
			n.item(msg.Delivery{Kind: msg.DeliverStarted, ID: e.ID, Output: r.submit.Output, Count: e.Cached})
		case scheduler.Preempted:
			n.slots[e.Slot] = nil
		case scheduler.Resumed:
			n.slots[e.Slot], r.slot, r.stored = r, e.Slot, -1
		case scheduler.Ended:
			r.ended = true
			n.leave(e.ID)
			cause := e.Cause
			if cause == nil {
				cause = r.cause
			}
			n.item(msg.Delivery{Kind: msg.DeliverEnded, ID: e.ID, Output: r.submit.Output, Why: e.Reason, Cause: cause})
			if e.Slot < 0 {
				delete(n.live, e.ID)
			}
		case scheduler.Released:
			delete(n.live, e.ID)
			n.slots[e.Slot] = nil
		}
	}
}

// returned takes back a batch that went through the whole pipeline.
func (n *scheduleNode) returned(m *msg.Reply) {
	b := m.Batch
	switch {
	case m.Epoch != b.Epoch:
		return // of a step that was given up
	case b.Status == msg.Void:
		n.gone(b)
		return
	case b.Status != msg.InFlight:
		return // reported lost meanwhile
	}
	for _, f := range b.Faults {
		if r := n.live[f.Seq]; r != nil && !r.ended { // rows without wanted logits cannot fail in another way
			n.blame(r, f.Seq, f.Err)
			n.core.Cancel(f.Seq, scheduler.Failed)
		}
	}
	b.Faults = b.Faults[:0]
	n.outcomes = n.outcomes[:0]
	for i := range b.Rows {
		if row := &b.Rows[i]; row.Scored {
			n.score(row)
		} else {
			n.outcomes = append(n.outcomes, n.outcome(row))
		}
	}
	n.progress(b)
	n.removeInFlight(b)
	if b.Raw == nil { // else the sample actor has answered
		if err := n.core.Done(b.ID, n.outcomes); err != nil {
			panic(err) // the books are wrong; nothing can be trusted
		}
		if n.deliver != nil {
			n.deliver.Batch, n.deliver.Epoch = b.ID, b.Epoch
		}
	}
	n.returnCredit(b)
	m.Free()
}

// progress tells requests that want it which part of their prompt is there.
func (n *scheduleNode) progress(b *msg.Batch) {
	for i := range b.Step.Spans {
		s := &b.Step.Spans[i]
		if r := n.live[s.Seq]; r != nil && r.submit.Progress && !r.ended && !s.Decode && !s.Want {
			n.item(msg.Delivery{Kind: msg.DeliverPrefilled, ID: s.Seq, Output: r.submit.Output, Count: s.Pos + s.Len})
		}
	}
}

// score passes on how likely a token of the prompt was, once: a prompt may be computed again.
func (n *scheduleNode) score(row *msg.Row) {
	r := n.live[row.Seq]
	if r.ended || row.At <= r.scoredTo || row.At >= r.submit.Request.PromptLen {
		return
	}
	if row.Err != nil {
		n.blame(r, row.Seq, row.Err)
		n.core.Cancel(row.Seq, scheduler.Failed)
		return
	}
	r.scoredTo = row.At
	n.item(msg.Delivery{Kind: msg.DeliverScored, ID: row.Seq, Output: r.submit.Output, Result: row.Result})
}

// blame notes the first cause why a request fails alone.
func (n *scheduleNode) blame(r *record, request uint64, cause error) {
	if r.cause != nil {
		return
	}
	r.cause = cause
	n.log.Error().Uint64("request", request).Err(cause).Msg("a request fails")
}

// outcome notes a new token and returns what it means for its sequence.
func (n *scheduleNode) outcome(row *msg.Row) scheduler.Outcome {
	o := scheduler.Outcome{ID: row.Seq, NewTokens: 1}
	r := n.live[row.Seq]
	if r.ended {
		return o
	}
	if row.Err != nil {
		n.blame(r, row.Seq, row.Err)
		o.NewTokens, o.End = 0, scheduler.Failed
		return o
	}
	r.tokens = append(r.tokens, row.Result.ID)
	o.Tokens = r.tokens[len(r.tokens)-1:]
	if row.Result.Stop {
		o.End = scheduler.Stop
	}
	n.item(msg.Delivery{Kind: msg.DeliverToken, ID: row.Seq, Output: r.submit.Output, Result: row.Result})
	return o
}

// item adds to what the stream actor gets after this message.
func (n *scheduleNode) item(d msg.Delivery) {
	n.delivery().Items = append(n.deliver.Items, d)
}

func (n *scheduleNode) delivery() *msg.Deliver {
	if n.deliver == nil {
		n.deliver = deliveries.Get().(*msg.Deliver)
	}
	return n.deliver
}

// flush sends everything that this message brought.
func (n *scheduleNode) flush(c *turn, now int64) {
	if len(n.drained) > 0 && n.core.Idle() && n.flying == 0 {
		n.delivery().Drained = append(n.delivery().Drained, n.drained...)
		n.drained = nil
	}
	if d := n.deliver; d != nil {
		n.deliver = nil
		d.At = now
		c.send(c.routes.stream, d)
	}
	n.meters.gauges(n.core.Stats())
}

// arm sets the alarm for the next deadline or missing batch.
func (n *scheduleNode) arm(now int64) {
	at, ok := n.core.NextDeadline()
	if slices.ContainsFunc(n.lost, func(b *msg.Batch) bool { return b.Status == msg.Lost }) {
		if retry := now + int64(retireEvery); !ok || retry < at {
			at, ok = retry, true
		}
	}
	if n.deadline > 0 && (n.flying > 0 || len(n.lost) > 0) {
		if look := now + int64(n.deadline)/4; !ok || look < at {
			at, ok = look, true
		}
	}
	if !ok || n.wake != 0 && n.wake <= at {
		return
	}
	n.wake = at
	n.alarm(max(0, time.Duration(at-now)))
}

// watch has the actors that wait for workers look at the time.
func (n *scheduleNode) watch(c *turn) {
	if n.deadline == 0 {
		return
	}
	c.send(c.routes.in, &msg.Tick{})
	for _, side := range c.routes.sides {
		c.send(side, &msg.Tick{})
	}
}

// drain ends admission, and with Cancel the running requests.
func (n *scheduleNode) drain(m *msg.Drain) {
	n.core.Drain()
	if m.Cancel {
		for _, id := range slices.Sorted(maps.Keys(n.live)) {
			n.core.Cancel(id, scheduler.Cancelled)
		}
	}
	if m.Done != nil {
		n.drained = append(n.drained, m.Done)
	}
}
