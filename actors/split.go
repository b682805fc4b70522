package actors

import (
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages/expert"
)

// splitNode divides the experts of a layer among the pools, sends the helper its part, and tells the
// merge how many parts to wait for.
type splitNode struct {
	partition   expert.Partition
	expertBytes int                   // of one expert's weights
	parts       [][]device.ExpertRows // [pools], reused: the rows are copied into the work's parts
}

func newSplitNode(p expert.Partition, expertBytes int) *splitNode {
	return &splitNode{partition: p, expertBytes: expertBytes, parts: make([][]device.ExpertRows, p.Pools)}
}

func (n *splitNode) receive(c *turn, m any) {
	w := m.(*msg.Work)
	n.partition.Divide(n.parts, w.Rows)
	expect := 0
	for i := range w.Parts {
		p := &w.Parts[i]
		if i < len(n.parts) { // the group has given the helper its part
			p.Rows = append(p.Rows[:0], n.parts[i]...)
		}
		p.Cause, p.Bytes = nil, uint64(len(p.Rows)*n.expertBytes)
		if len(p.Rows) > 0 || p.Whole {
			expect++
		}
	}
	// Expect is complete before the first part leaves: the merge may read it as
	// soon as one part has arrived. With the last part the work has a new owner: the next
	// group's split may be filling it for another layer by then.
	w.Expect = expect
	c.event.Parts = uint16(expect)
	for i := 0; expect > 0; i++ {
		if p := &w.Parts[i]; len(p.Rows) > 0 || p.Whole {
			if expect--; i == len(n.parts) {
				c.send(c.routes.helper, p)
			} else {
				c.send(c.routes.pools[i], p)
			}
		}
	}
}
