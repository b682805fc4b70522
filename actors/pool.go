package actors

import (
	"fmt"

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
	// A kernel's panic becomes the part's cause, so that the merge is never left
	// waiting; then it goes on to the supervisor.
	defer func() {
		r := recover()
		if r != nil {
			p.Cause = fmt.Errorf("expert pool %d, layer %d: %v", p.Pool, w.Layer, r)
		}
		c.send(c.routes.merges[w.Group], p)
		if r != nil {
			panic(r)
		}
	}()
	if w.Batch.Abandoned.Load() {
		return
	}
	n.groups[w.Group].Experts(n.stream, w.Batch.State, w.Layer, p.Rows)
	p.Cause = n.stream.Synchronize()
}
