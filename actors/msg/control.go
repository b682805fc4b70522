package msg

import (
	"krater/actors/trace"
	"krater/scheduler"
	"krater/stages/sample"
)

// Submit brings a request to the schedule actor, which answers once on Reply
// (buffered): nil when the request is queued, else the reason it is not.
type Submit struct {
	Request scheduler.Request
	Prompt  []int32 // token ids, owned by the schedule actor from here on
	Sampler *sample.Sequence
	Output  Output
	Scores  int // with Request.Scored: how many alternatives are reported
	// Progress has the parts of the prompt reported that are computed.
	Progress bool
	Reply    chan error
	// Again makes a sampler that has made the choices of these tokens of the answer.
	Again func(answer []int32) (*sample.Sequence, error)
}

// Prefixes asks the schedule actor for the digests of the prefixes that the cache has for a domain: kvblocks.Pool.Digests.
type Prefixes struct {
	Domain [32]byte
	Reply  chan []uint64 // gets one list; buffered
}

// Suspended is a request between two pipelines.
type Suspended struct {
	Submit   *Submit
	Place    scheduler.Suspended
	Answer   []int32 // its tokens so far
	ScoredTo int     // the last position of the prompt whose score was reported
	Fault    error   // it cannot go on
}

// Suspend makes the schedule actor stop making batches and forget the batches in flight. It still takes
// requests and cancels them.
type Suspend struct {
	Delivered chan struct{} // closed when the stream actor has all that was reported before; may be nil
}

// Collect fetches the requests of a suspended schedule actor. The actor takes no requests any more.
type Collect struct {
	Suspend
	List []*Suspended // set when Delivered is closed
}

// Adopt brings requests of another pipeline to the schedule actor.
type Adopt struct{ List []*Suspended }

// Output receives the events of one request. Only the stream actor calls its
// methods, except Abort.
type Output interface {
	// Queued reports the number of requests that start before this one.
	Queued(position int)
	// Started reports the start, and the number of the prompt's tokens that are cached.
	Started(at int64, cached int)
	// Prefilled reports the number of the prompt's tokens computed so far, if the request wants that.
	Prefilled(done int)
	// Scored reports the next token of the prompt, if the request wants that.
	Scored(r sample.Result)
	// Token takes the next token; true means that the answer is complete and the scheduler must be
	// told.
	Token(r sample.Result, at int64) bool
	// Ended comes once for every request that was accepted, and last but for Abort. It returns the
	// times of the whole request for the trace.
	Ended(why scheduler.Reason, cause error, at int64) trace.Event
	// Abort ends a request about which nothing more will be reported. It may come at any time, from
	// any goroutine, and more than once.
	Abort(cause error)
}

// Describe implements Traced.
func (s *Submit) Describe(e *trace.Event) { e.Kind, e.Request = trace.Control, s.Request.ID }

// Cancel ends a request: the client left, or its answer is complete.
type Cancel struct {
	ID  uint64
	Why scheduler.Reason
}

// Describe implements Traced.
func (c *Cancel) Describe(e *trace.Event) { e.Kind, e.Request = trace.Control, c.ID }

// Deliver carries the results of one step to the requests in it, in order.
type Deliver struct {
	At    int64  // trace clock
	Batch uint64 // the batch that brought it, 0: none
	Epoch uint32
	Items []Delivery
	// Drained channels are closed after the items: no request is left.
	Drained []chan struct{}
	stamp
}

// Reset empties d for another use and returns it.
func (d *Deliver) Reset() *Deliver {
	clear(d.Items)
	*d = Deliver{Items: d.Items[:0]}
	return d
}

// Describe implements Traced.
func (d *Deliver) Describe(e *trace.Event) {
	e.Batch, e.Epoch, e.Rows, e.Enqueued = d.Batch, d.Epoch, uint32(len(d.Items)), d.sent
}

// Delivery is one event of one request.
type Delivery struct {
	Kind   DeliveryKind
	ID     uint64
	Output Output
	Count  int // of DeliverQueued: requests before it; of DeliverStarted: tokens from the cache; of DeliverPrefilled: tokens that are there
	Result sample.Result
	Why    scheduler.Reason
	Cause  error
}

// DeliveryKind selects the method of Output that a Delivery is for.
type DeliveryKind uint8

// The kinds of a Delivery.
const (
	DeliverQueued DeliveryKind = iota
	DeliverStarted
	DeliverPrefilled
	DeliverScored
	DeliverToken
	DeliverEnded
)

// Failed reports to the schedule actor that a batch will not come back whole.
type Failed struct {
	Batch *Batch
	Epoch uint32 // that the batch was sent in
	Step  uint64 // its number; 0: the sender has the batch
	Cause error
	// Repeatable says that the fault is in how the step was carried out and not in what it computes,
	// that devices are well, and that no token of it was chosen: it may be repeated.
	Repeatable bool
}

// Forget tells groups and merges to drop what they keep of a batch that failed elsewhere. It is
// sent once no other message about the batch is left. Each answers with Forgotten.
type Forget struct{ Batch *Batch }

// Forgotten answers Forget: this actor will not touch the batch any more.
type Forgotten struct{ Batch *Batch }

// Tick lets the schedule actor look at deadlines and retired batches while
// nothing else happens.
type Tick struct{}

// Drain ends admission; Done is closed when the last request has ended and its
// reader can see that. With Cancel the running requests are cancelled too.
type Drain struct {
	Cancel bool
	Done   chan struct{}
}
