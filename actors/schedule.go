package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
)

// scheduleNode drives the scheduler's core: it owns every request from Submit
// to Released and every batch that is not on its way. After each message it
// sends what the core decides, as far as credits (free batches) reach.
type scheduleNode struct {
	core   *scheduler.Core
	stream device.Stream
	meters *meters
	root   *actor.RootContext // for the timer

	free    []*msg.Batch // the credits
	flights map[uint64]*flight
	retired map[*msg.Batch]int // failed batches: acknowledgements still missing, -1 = not asked

	live  map[uint64]*record // accepted and not released
	slots []*record          // by the core's slot

	raws    []*msg.Raw // raw steps that wait for an idle pipeline
	rawLast uint64

	plan     stages.Batch
	outcomes []scheduler.Outcome
	deliver  *msg.Deliver
	drained  []chan struct{}
	wake     int64 // when the timer fires; 0: not set
}

// record is what the driver keeps of a request.
type record struct {
	submit *msg.Submit
	tokens []int32 // prompt, then what was generated
	flight *flight // the batch it is in, or nil
	ended  bool
}

// flight is a batch on its way.
type flight struct {
	batch *msg.Batch
	core  scheduler.Batch // zero for a raw step
	live  int             // spans whose request has not ended
}

// rawIDs is the first id of raw steps, out of the core's way.
const rawIDs = 1 << 63

// retireEvery is how often retired batches are looked at; they are rare.
const retireEvery = 5 * time.Millisecond

func newScheduleNode(core *scheduler.Core, stream device.Stream, m *meters, root *actor.RootContext, batches []*msg.Batch, slots int) *scheduleNode {
	return &scheduleNode{
		core: core, stream: stream, meters: m, root: root, free: batches,
		flights: map[uint64]*flight{}, retired: map[*msg.Batch]int{},
		live: map[uint64]*record{}, slots: make([]*record, slots),
	}
}

func (n *scheduleNode) receive(c *turn, m any) {
	now := trace.Now()
	switch m := m.(type) {
	case *msg.Batch:
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
	case *msg.Drain:
		n.drain(m)
	}
	n.pump(c, now)
	n.retire(c)
	n.flush(c, now)
	n.arm(c, now)
}

// submit hands a request to the core and answers its door.
func (n *scheduleNode) submit(m *msg.Submit, now int64) {
	err := n.core.Add(m.Request, now)
	if err == nil {
		n.live[m.Request.ID] = &record{submit: m, tokens: m.Prompt}
		n.item(msg.Delivery{Kind: msg.DeliverQueued, ID: m.Request.ID, Output: m.Output})
	}
	m.Reply <- err
}

// pump sends batches while the core has work and a credit is free. A raw step
// goes first, once nothing else is on its way: it uses the same KV blocks.
func (n *scheduleNode) pump(c *turn, now int64) {
	for len(n.free) > 0 {
		if len(n.raws) > 0 || n.rawInFlight() {
			n.effects(now)
			if len(n.flights) == 0 {
				n.sendRaw(c)
			}
			return
		}
		b, ok := n.core.Next(now)
		n.effects(now)
		if !ok {
			return
		}
		n.sendBatch(c, b)
	}
	n.effects(now)
}

func (n *scheduleNode) rawInFlight() bool {
	for _, f := range n.flights {
		if f.batch.Raw != nil {
			return true
		}
	}
	return false
}

// effects carries out what the core decided.
func (n *scheduleNode) effects(now int64) {
	for _, e := range n.core.Effects() {
		r := n.live[e.ID]
		switch e.Kind {
		case scheduler.Started:
			n.slots[e.Slot] = r
			n.item(msg.Delivery{Kind: msg.DeliverStarted, ID: e.ID, Output: r.submit.Output})
		case scheduler.Ended:
			r.ended = true
			if f := r.flight; f != nil {
				if f.live--; f.live == 0 {
					f.batch.Abandoned.Store(true)
				}
			}
			n.item(msg.Delivery{Kind: msg.DeliverEnded, ID: e.ID, Output: r.submit.Output, Why: e.Reason, Cause: e.Cause})
			if e.Slot < 0 {
				delete(n.live, e.ID)
			}
		case scheduler.Released:
			delete(n.live, e.ID)
			n.slots[e.Slot] = nil
		}
	}
}

// sendBatch fills a free state with the core's decision and sends it.
func (n *scheduleNode) sendBatch(c *turn, d scheduler.Batch) {
	b := n.take()
	b.ID, b.Epoch, b.Rows = d.ID, d.Epoch, b.Rows[:0]
	f := &flight{batch: b, core: d, live: len(d.Spans)}
	n.flights[d.ID] = f
	n.plan.Tokens, n.plan.Spans = n.plan.Tokens[:0], n.plan.Spans[:0]
	for i := range d.Spans {
		sp := &d.Spans[i]
		r := n.slots[sp.Slot]
		r.flight = f
		n.plan.Tokens = append(n.plan.Tokens, r.tokens[sp.Pos:sp.Pos+sp.Len]...)
		n.plan.Spans = append(n.plan.Spans, stages.Span{
			Span: device.Span{Row: sp.Row, Len: sp.Len, Pos: sp.Pos, Blocks: sp.Blocks},
			Seq:  sp.ID, Decode: sp.Decode, Want: sp.Last,
		})
		if sp.Last {
			b.Rows = append(b.Rows, msg.Row{Seq: sp.ID, Sampler: r.submit.Sampler})
		}
	}
	if err := b.State.Fill(n.stream, &n.plan); err != nil {
		n.lost(f, fmt.Errorf("batch %d: %w", d.ID, err))
		n.free = append(n.free, b)
		return
	}
	n.meters.step(d.Rows, d.Rows-d.Decode)
	c.send(c.routes.embed, b)
}

func (n *scheduleNode) take() *msg.Batch {
	b := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	b.Abandoned.Store(false)
	b.Raw = nil
	return b
}

// sendRaw sends the oldest raw step.
func (n *scheduleNode) sendRaw(c *turn) {
	raw := n.raws[0]
	n.raws = n.raws[1:]
	if !n.core.Idle() {
		raw.Reply <- errors.New("a raw step needs a pipeline without requests")
		return
	}
	b := n.take()
	n.rawLast++
	b.ID, b.Raw, b.Rows = rawIDs+n.rawLast, raw, b.Rows[:0]
	if err := b.State.Fill(n.stream, raw.Batch); err != nil {
		n.free = append(n.free, b)
		raw.Reply <- err
		return
	}
	n.flights[b.ID] = &flight{batch: b}
	c.send(c.routes.embed, b)
}

// returned takes back a batch that went through the whole pipeline.
func (n *scheduleNode) returned(b *msg.Batch) {
	f := n.flights[b.ID]
	if f == nil || f.batch != b {
		return // it failed elsewhere meanwhile and is retired
	}
	delete(n.flights, b.ID)
	n.free = append(n.free, b)
	if b.Raw != nil {
		return // the sample actor has answered
	}
	n.outcomes = n.outcomes[:0]
	for i := range b.Rows {
		n.outcomes = append(n.outcomes, n.outcome(&b.Rows[i]))
	}
	for i := range f.core.Spans {
		n.slots[f.core.Spans[i].Slot].flight = nil
	}
	if err := n.core.Done(b.ID, n.outcomes); err != nil {
		panic(err) // the books are wrong; nothing can be trusted
	}
}

// outcome notes a new token and tells what it means for its sequence.
func (n *scheduleNode) outcome(row *msg.Row) scheduler.Outcome {
	o := scheduler.Outcome{ID: row.Seq, NewTokens: 1}
	r := n.live[row.Seq]
	if r.ended {
		return o
	}
	if row.Err != nil {
		n.item(msg.Delivery{Kind: msg.DeliverEnded, ID: row.Seq, Output: r.submit.Output, Why: scheduler.Failed, Cause: row.Err})
		o.NewTokens, o.End = 0, scheduler.Failed
		return o
	}
	r.tokens = append(r.tokens, row.Result.ID)
	if row.Result.Stop {
		o.End = scheduler.Stop
	}
	n.item(msg.Delivery{Kind: msg.DeliverToken, ID: row.Seq, Output: r.submit.Output, Result: row.Result})
	return o
}

// item adds to what the stream actor gets after this message.
func (n *scheduleNode) item(d msg.Delivery) {
	if n.deliver == nil {
		n.deliver = deliveries.Get().(*msg.Deliver)
	}
	n.deliver.Items = append(n.deliver.Items, d)
}

// flush sends the deliveries and publishes the gauges.
func (n *scheduleNode) flush(c *turn, now int64) {
	if n.deliver != nil {
		n.deliver.At = now
		c.send(c.routes.stream, n.deliver)
		n.deliver = nil
	}
	n.meters.gauges(n.core.Stats())
	if len(n.drained) > 0 && n.core.Idle() && len(n.flights) == 0 {
		for _, d := range n.drained {
			close(d)
		}
		n.drained = nil
	}
}

// arm sets the timer for the next deadline or retired batch.
func (n *scheduleNode) arm(c *turn, now int64) {
	at, ok := n.core.NextDeadline()
	if len(n.retired) > 0 {
		if retry := now + int64(retireEvery); !ok || retry < at {
			at, ok = retry, true
		}
	}
	if !ok || n.wake != 0 && n.wake <= at {
		return
	}
	n.wake = at
	self, root := c.ctx.Self(), n.root
	time.AfterFunc(max(0, time.Duration(at-now)), func() { root.Send(self, &msg.Tick{}) })
}

// drain ends admission, and with Cancel the running requests.
func (n *scheduleNode) drain(m *msg.Drain) {
	n.core.Drain()
	if m.Cancel {
		for id := range n.live {
			n.core.Cancel(id, scheduler.Cancelled)
		}
	}
	n.drained = append(n.drained, m.Done)
}
