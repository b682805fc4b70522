package actors

import (
	"fmt"
	"runtime/debug"
	"sync"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/scheduler"
)

// streamNode turns tokens into text for every running request: detokenizing, stop strings and
// log-probabilities happen here, off the step's critical path.
type streamNode struct{}

func (streamNode) receive(c *turn, m any) {
	d := m.(*msg.Deliver)
	for i := range d.Items {
		deliver(c, &d.Items[i], d.At)
	}
	for _, done := range d.Drained {
		close(done)
	}
	deliveries.Put(d.Reset())
}

// deliver carries out one item. A panic in one request's text ends that request
// only: the message has the ends of other requests in it, which would otherwise be
// lost.
func deliver(c *turn, it *msg.Delivery, at int64) {
	defer func() {
		if r := recover(); r != nil {
			c.log.Error().Str("cause", fmt.Sprint(r)).Uint64("request", it.ID).Bytes("stack", debug.Stack()).Msg("output failed")
			it.Output.Abort(fmt.Errorf("output failed: %v", r))
			c.send(c.routes.schedule, &msg.Cancel{ID: it.ID, Why: scheduler.Failed})
		}
	}()
	switch it.Kind {
	case msg.DeliverQueued:
		it.Output.Queued(it.Count)
	case msg.DeliverStarted:
		it.Output.Started(at, it.Count)
	case msg.DeliverPrefilled:
		it.Output.Prefilled(it.Count)
	case msg.DeliverScored:
		it.Output.Scored(it.Result)
	case msg.DeliverToken:
		if it.Output.Token(it.Result, at) {
			c.send(c.routes.schedule, &msg.Cancel{ID: it.ID, Why: scheduler.Stop})
		}
	case msg.DeliverEnded:
		e := it.Output.Ended(it.Why, it.Cause, at)
		e.Kind, e.Layer, e.Request, e.Ended = trace.Request, -1, it.ID, at
		c.ring.Record(&e)
	}
}

// deliveries are reused: each step sends one.
var deliveries = sync.Pool{New: func() any { return new(msg.Deliver) }}
