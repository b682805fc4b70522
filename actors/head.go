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
	keeps  func(b *msg.Batch) bool // rank.keeps
	placed bool                    // the schedule actor waits for steps to be submitted: scheduleNode.hold
}

func (n *headNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	b.Kept = false
	if !b.Abandoned.Load() {
		n.stage.Run(b.On(n.stream), b.State, b.Probe())
		if b.Kept = n.keeps(b); b.Kept {
			b.State.FetchRoutes(b.Stream)
		}
		wait(b, n.stream)
		if b.Stream != nil {
			b.Stream.Submit()
			b.Submitted.Store(true)
			if n.placed {
				c.send(c.routes.schedule, &msg.Tick{})
			}
		}
	}
	c.send(c.routes.sample, b)
}
