package actors

import (
	"sync/atomic"

	"krater/actors/msg"
)

// linkNode takes a batch from one layer group to the next. Both compute on the
// same memory here, so the batch itself moves and its hidden states stay where
// they are; bytes counts what a link between two memories would have to carry.
type linkNode struct {
	to    int // index of the group it leads to
	width int // bytes of one row of hidden states
	bytes *atomic.Uint64
}

func (n *linkNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	c.event.Bytes = uint64(b.State.T * n.width)
	n.bytes.Add(c.event.Bytes)
	c.send(c.routes.groups[n.to], b)
}
