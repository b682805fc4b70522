package actors

import (
	"sync"

	"krater/actors/msg"
	"krater/scheduler"
)

// streamNode turns tokens into text for every running request: detokenising,
// stop strings and log-probabilities happen here, off the step's critical path.
type streamNode struct{}

func (streamNode) receive(c *turn, m any) {
	d := m.(*msg.Deliver)
	for i := range d.Items {
		switch it := &d.Items[i]; it.Kind {
		case msg.DeliverQueued:
			it.Output.Queued()
		case msg.DeliverStarted:
			it.Output.Started(d.At)
		case msg.DeliverToken:
			if it.Output.Token(it.Result, d.At) {
				c.send(c.routes.schedule, &msg.Cancel{ID: it.ID, Why: scheduler.Stop})
			}
		case msg.DeliverEnded:
			it.Output.Ended(it.Why, it.Cause, d.At)
		}
	}
	deliveries.Put(d.Reset())
}

// deliveries are reused: one is sent every step.
var deliveries = sync.Pool{New: func() any { return new(msg.Deliver) }}
