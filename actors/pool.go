package actors

import (
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages/group"
)

// poolNode computes its share of a layer's experts. The experts of every group
// that it owns are its to run; it writes disjoint rows of the batch's expert
// output, on a stream of its own.
type poolNode struct {
	groups []*group.Group
	stream device.Stream
}

func (n *poolNode) receive(c *turn, m any) {
	p := m.(*msg.Part)
	w := p.Work
	n.groups[w.Group].Experts(n.stream, w.Batch.State, w.Layer, p.Rows)
	p.Cause = n.stream.Synchronize()
	c.send(c.routes.merges[w.Group], p)
}
