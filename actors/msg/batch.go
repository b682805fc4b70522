// Package msg holds the messages of the pipeline: structs named for what they carry, immutable once
// sent. One exception: a *Batch and what it holds belong to the actor that received it last, and
// only that owner changes them.
package msg

import (
	"sync"
	"sync/atomic"
	"time"

	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/link"
	"krater/stages/offload"
	"krater/stages/sample"
)

// Batch is one step in the pipeline. There is a fixed number of them (one for each micro-batch, two
// where the pipeline runs ahead): they are the credits that bound the work in flight.
type Batch struct {
	// Batch is the scheduler's decision that it carries; of a raw step it has an ID alone.
	scheduler.Batch
	Index int // of the batch, from 0
	Queue int // of accelerators, which its streams belong to; 0 where they have one queue
	// Epoch rises with every step that is lost. A reply of an older one, about a step that was
	// given up before it came, is dropped.
	Epoch uint32
	Step  *stages.Step

	// Away carries the batch while other processes compute layers of it.
	Away Away
	// Head is the index in Ranks of the rank with the head.
	Head int

	// Ranks are the batch's own on each rank. *Local is that of the rank where the batch is: the owner
	// of the batch may use it, and a link changes it (Enter).
	Ranks []Local
	*Local

	// Rows[i] belongs to the i-th wanted row of Step: its request, and the token that was chosen. A
	// sampler belongs to its sequence, and a sequence is in one batch at a time.
	Rows []Row

	// Faults are the requests of which the batch computed something that is not finite.
	Faults []Fault

	// Raw is set for a step that was not scheduled: no tokens are chosen, the caller reads the state
	// itself.
	Raw *Raw

	// Submitted is set when the last rank's device has been given the whole step, with the choice of tokens.
	Submitted atomic.Bool

	// Abandoned is set when the answer is no longer wanted; the pipeline then passes the batch on
	// without computing.
	Abandoned atomic.Bool

	// Only the schedule actor uses these, whichever actor owns the batch.
	Status  Status
	Live    int  // spans whose request has not ended
	Drawn   bool // the device chooses all its tokens
	Forgets int  // actors that have not yet answered that they forgot the batch

	holds atomic.Int32 // messages about the batch that are not handled yet, see Holding

	// Quiet batches are not in the trace's sample: messages about their single layers are not
	// recorded. Others is the number of such messages for which a recorded one stands.
	Quiet  bool
	Others uint8

	// Walk is where the batch is within its layer group.
	Walk group.Walk

	Work   Work   // the expert work of the current layer
	Merged Merged // the answer to it

	stamp
}

// Status is the state of a batch for the schedule actor.
type Status uint8

const (
	Free       Status = iota
	InFlight          // in the pipeline
	Void              // in the pipeline, but nothing of it counts any more
	Lost              // it failed, and messages about it may be left
	Forgetting        // it failed, and actors that may keep it were asked to forget it
)

// Local holds the state of a batch on one rank.
type Local struct {
	State *stages.State // the batch's Step, and its rows there
	// Stream, on an accelerator, has all work of the batch: the stages enqueue and pass the batch
	// on, and the actor that needs a result waits. It is nil elsewhere: every stage has a
	// stream of its own and is done when it passes the batch on.
	Stream device.AcceleratorStream
	// Hop brings the rows from the rank before; nil on the first. Arriving says that it brings those of the
	// step, and that they were not checked yet.
	Hop      *link.Hop
	Arriving bool
	// Unended says that the batch went on while the device had not done the step. Took is how long the
	// device took for the step that was ended last, if that was timed.
	Unended bool
	Took    time.Duration

	// Parts are the kinds of the parts of the step that the device has timed so far.
	Parts []trace.Kind
	// Timing is of the copies and waits of the step. If Stream is nil, Anchor is a timestamp that
	// the device passed when the trace's clock showed Anchored.
	Timing   device.Timing
	Anchor   device.Timestamp
	Anchored int64

	// Where routed experts lie on two devices: the host's side of State, and the work of the current
	// layer that is the host's.
	Mirror *offload.Mirror
	Host   []device.ExpertRows
	// CallsHost says that the step makes host calls for experts, by HostCalls, which is nil on devices
	// that never make any. The pools answer them while Serving is set.
	CallsHost bool
	Serving   bool
	HostCalls *offload.HostCalls

	// Kept says that State will have what the routers chose (stages.State.Routes) when the step has
	// ended, and that it has not been counted.
	Kept bool
}

// Enter puts the batch on a rank.
func (b *Batch) Enter(rank int) { b.Local = &b.Ranks[rank] }

// Last is the batch's own on the rank with the head.
func (b *Batch) Last() *Local { return &b.Ranks[b.Head] }

// Reply brings a batch back that went through the whole pipeline, in the epoch that it was sent in.
// It has copies of what it says, because one that comes late may find the batch in another step.
type Reply struct {
	Batch *Batch
	Epoch uint32
	id    uint64
	lane  uint8
	rows  uint32
	stamp
}

// replies holds replies that are not in use.
var replies = sync.Pool{New: func() any { return new(Reply) }}

// Free returns r for another step. Its receiver calls it once, when it is done with r.
func (r *Reply) Free() {
	*r = Reply{}
	replies.Put(r)
}

// NewReply is about the step that b is in.
func NewReply(b *Batch) *Reply {
	r := replies.Get().(*Reply)
	*r = Reply{Batch: b, Epoch: b.Epoch, id: b.ID, lane: uint8(b.MicroBatch), rows: uint32(b.Step.Total())}
	return r
}

// Describe implements Traced.
func (r *Reply) Describe(e *trace.Event) {
	e.Batch, e.Lane, e.Epoch, e.Layer, e.Rows, e.Enqueued = r.id, r.lane, r.Epoch, -1, r.rows, r.sent
}

// On returns the stream that the batch has there, or own where it has none.
func (l *Local) On(own device.Stream) device.Stream {
	if l.Stream != nil {
		return l.Stream
	}
	return own
}

// Row is the sampling of one wanted row.
type Row struct {
	Seq     uint64
	Sampler *sample.Sequence
	// Scored rows already have a token after them, Given at position At. Its likelihood is reported,
	// with that many Alternatives, and none is chosen.
	Scored       bool
	Given        int32
	At           int
	Alternatives int
	Result       sample.Result
	Err          error // the sampler could not choose: NaN logits
}

// Fault is why a request cannot go on.
type Fault struct {
	Seq uint64
	Err error
}

// Raw asks for one step of a batch that the caller made, and its result.
type Raw struct {
	Step  *stages.Step
	Probe stages.Probe
	Read  func(*stages.State) error // runs while the state is valid; may be nil
	Reply chan error                // buffered; one answer
}

// Held reports whether a message about the batch is not handled yet: its receiver may read or write
// State.
func (b *Batch) Held() bool { return b.holds.Load() > 0 }

// Holding messages are about a batch that another actor owns. The sender holds the batch for them,
// and the receiver releases it once it is done with the message and, if it failed, has reported
// that.
type Holding interface {
	Hold()
	Release()
}

// Hold implements Holding.
func (w *Work) Hold() { w.Batch.holds.Add(1) }

// Release implements Holding.
func (w *Work) Release() { w.Batch.holds.Add(-1) }

// Hold implements Holding.
func (p *Part) Hold() { p.Work.Hold() }

// Release implements Holding.
func (p *Part) Release() { p.Work.Release() }

// Hold implements Holding.
func (m *Merged) Hold() { m.Batch.holds.Add(1) }

// Release implements Holding.
func (m *Merged) Release() { m.Batch.holds.Add(-1) }

// Serve tells a pool to answer the host calls of a batch's step until that ends. It does not carry
// the batch: the actor that waits for the step has it, and HostCalls tells it if a pool fails. A
// pool may read Serve when the batch is in a later step, so each Serve has its own copy of the
// step's number and of what the trace says about it.
type Serve struct {
	Batch     *Batch
	Rank      int // that makes the calls
	HostCalls *offload.HostCalls
	Step      uint64 // of HostCalls.Begin
	about     trace.Event
	stamp
}

// NewServe returns a message to one pool about the step that b is in, on the rank where b is.
func NewServe(b *Batch, rank int, step uint64) *Serve {
	s := &Serve{Batch: b, Rank: rank, HostCalls: b.HostCalls, Step: step}
	s.describe(&s.about, b, -1)
	return s
}

// Hold implements Holding.
func (s *Serve) Hold() { s.Batch.holds.Add(1) }

// Release implements Holding.
func (s *Serve) Release() { s.Batch.holds.Add(-1) }

// Describe implements Traced.
func (s *Serve) Describe(e *trace.Event) {
	e.Batch, e.Lane, e.Epoch, e.Layer, e.Rows, e.Enqueued = s.about.Batch, s.about.Lane, s.about.Epoch, s.about.Layer, s.about.Rows, s.sent
}

// Work requests the routed experts of one layer. The group sends it to its split, which gives every
// pool its part.
type Work struct {
	Batch *Batch
	Layer int
	Group int
	Rows  []device.ExpertRows // all experts of the layer that have rows
	Parts []Part              // one per pool and one for a helper, preallocated
	// Expect is the number of parts that the merge must wait for; the split sets it.
	Expect int
	stamp
}

// Helped returns the helper's part. The group sets its rows before the split has the work.
func (w *Work) Helped() *Part { return &w.Parts[len(w.Parts)-1] }

// Part is the share of a Work that one pool or the helper has. It writes the rows of State.ExpertOut that its
// assignments name, and no others; a helper may send their weighted sum instead.
type Part struct {
	Work  *Work
	Pool  int
	Rows  []device.ExpertRows
	Whole bool   // of a helper: it finds the rows by itself, and Rows are not known
	Bytes uint64 // of the experts' weights
	Cause error  // set by the pool when it could not do its part
	stamp
}

// Away gives a batch whose step goes on in other processes to the actor that takes it back.
type Away struct {
	Batch *Batch
	Since int64 // set by the receiver: when it got the batch
	stamp
}

// Describe implements Traced.
func (a *Away) Describe(e *trace.Event) { a.describe(e, a.Batch, -1) }

// Carried implements Carrier.
func (a *Away) Carried() *Batch { return a.Batch }

// Merged reports to the group that all parts of a layer's experts are done.
type Merged struct {
	Batch *Batch
	Layer int
	Cause error // a pool could not do its part
	stamp
}

// NewBatch makes a batch around states of one step, one for each rank, for a pipeline with that
// many pools.
func NewBatch(pools int, ranks ...*stages.State) *Batch {
	b := &Batch{Step: ranks[0].Step, Ranks: make([]Local, len(ranks)), Head: len(ranks) - 1}
	b.Away.Batch = b
	for i, st := range ranks {
		b.Ranks[i].State = st
	}
	b.Enter(0)
	b.Work = Work{Batch: b, Parts: make([]Part, pools+1)}
	for i := range b.Work.Parts {
		b.Work.Parts[i] = Part{Work: &b.Work, Pool: i}
	}
	b.Merged.Batch = b
	return b
}

// Probe returns the observer of a raw step, else nil.
func (b *Batch) Probe() stages.Probe {
	if b.Raw == nil {
		return nil
	}
	return b.Raw.Probe
}

// stamp is when a message was last sent, in the trace's clock.
type stamp struct{ sent int64 }

// Stamp implements Stamped.
func (s *stamp) Stamp(now int64) { s.sent = now }

// Stamped messages note when they were sent, for the queue wait in the trace, if they are to be
// recorded there at all.
type Stamped interface {
	Stamp(now int64)
	Noted() bool
}

// Noted implements Stamped: messages of which each step has one always are.
func (s *stamp) Noted() bool { return true }

// Noted implements Stamped.
func (w *Work) Noted() bool { return !w.Batch.Quiet }

// Noted implements Stamped.
func (p *Part) Noted() bool { return !p.Work.Batch.Quiet }

// Noted implements Stamped.
func (m *Merged) Noted() bool { return !m.Batch.Quiet }

// Traced messages describe themselves to the trace: everything but the times of
// handling. The kind is set to that of the receiver.
type Traced interface{ Describe(e *trace.Event) }

// Describe implements Traced.
func (b *Batch) Describe(e *trace.Event) { b.describe(e, b, -1) }

// Describe implements Traced.
func (w *Work) Describe(e *trace.Event) { w.describe(e, w.Batch, w.Layer) }

// Describe implements Traced.
func (p *Part) Describe(e *trace.Event) {
	p.describe(e, p.Work.Batch, p.Work.Layer)
	e.Bytes = p.Bytes
}

// Describe implements Traced.
func (m *Merged) Describe(e *trace.Event) { m.describe(e, m.Batch, m.Layer) }

func (s *stamp) describe(e *trace.Event, b *Batch, layer int) {
	e.Batch, e.Lane, e.Epoch, e.Layer, e.Enqueued = b.ID, uint8(b.MicroBatch), b.Epoch, int16(layer), s.sent
	e.Rows = uint32(b.State.T)
	if layer >= 0 {
		e.Others = b.Others
	}
}

// Carrier messages hold a batch, which their receiver answers for.
type Carrier interface{ Carried() *Batch }

// Carried implements Carrier.
func (b *Batch) Carried() *Batch { return b }

// Carried implements Carrier.
func (r *Reply) Carried() *Batch { return r.Batch }

// Carried implements Carrier.
func (w *Work) Carried() *Batch { return w.Batch }

// Carried implements Carrier.
func (p *Part) Carried() *Batch { return p.Work.Batch }

// Carried implements Carrier.
func (m *Merged) Carried() *Batch { return m.Batch }
