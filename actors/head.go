package actors

import (
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages/head"
)

// headNode computes the logits of the rows that are wanted, on the last rank.
type headNode struct {
	stage  *head.Stage
	stream device.Stream
}

func (n *headNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if !b.Abandoned.Load() {
		n.stage.Run(b.On(n.stream), b.State, b.Probe())
		wait(b, n.stream)
		if b.Asks {
			serve(c, b)
		}
		if s, ok := b.Stream.(device.Submitter); ok {
			s.Submit()
		}
	}
	c.send(c.routes.sample, b)
}

// serve has the pools answer what the device will ask in a step, which is enqueued and about
// to be submitted.
func serve(c *turn, b *msg.Batch) {
	b.Asked = true
	b.Letters.Begin(b.State.Total())
	for i := range c.routes.pools {
		c.send(c.routes.pools[i], &b.Serving[i])
	}
	c.sent = 0
}
