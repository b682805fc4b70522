package actors

import (
	"krater/actors/msg"
)

// mergeNode waits for the parts that the split announced. The group computes the sum: it adds the
// expert rows in the order of each token's choice, whatever order the parts came in, so the bits do
// not depend on the partition.
type mergeNode struct {
	arrived map[*msg.Work]int
}

func newMergeNode() *mergeNode { return &mergeNode{arrived: map[*msg.Work]int{}} }

func (n *mergeNode) receive(c *turn, m any) {
	if f, ok := m.(*msg.Forget); ok {
		delete(n.arrived, &f.Batch.Work)
		c.send(c.routes.schedule, &msg.Forgotten{Batch: f.Batch})
		return
	}
	w := m.(*msg.Part).Work
	c.event.Bytes = 0 // those were the pool's
	n.arrived[w]++
	if n.arrived[w] < w.Expect {
		return
	}
	delete(n.arrived, w)
	c.event.Parts = uint16(w.Expect)
	merged := &w.Batch.Merged
	merged.Layer, merged.Cause = w.Layer, nil
	for i := range w.Parts {
		if err := w.Parts[i].Cause; err != nil {
			merged.Cause = err
			break
		}
	}
	c.send(c.routes.groups[w.Group], merged)
}

// held implements holder.
func (n *mergeNode) held() []*msg.Batch {
	var batches []*msg.Batch
	for w := range n.arrived {
		batches = append(batches, w.Batch)
	}
	return batches
}
