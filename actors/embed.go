package actors

import (
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/stages/embed"
)

// embedNode turns a batch's token ids into hidden states on the first rank.
type embedNode struct {
	stage  *embed.Stage
	stream device.Stream
}

func (n *embedNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if !b.Abandoned.Load() {
		n.stage.Run(b.On(n.stream), b.State, b.Probe())
		wait(b, n.stream)
	}
	timePart(b, trace.DeviceEmbed)
	c.send(c.routes.groups[0], b)
}
