package actors

import (
	"krater/actors/msg"
)

// failed ends the requests of a batch that will not come back. Other sequences
// go on: a batch writes the KV blocks of its own sequences only, and an actor
// finishes with the lost batch before it takes another one. A prompt is not
// tried again: a fault that the same input triggers would take the pipeline
// down with it.
func (n *scheduleNode) failed(m *msg.Failed) {
	f := n.flights[m.Batch.ID]
	if f == nil || f.batch != m.Batch {
		return // told before
	}
	n.lost(f, m.Cause)
	m.Batch.Abandoned.Store(true)
	n.retired[m.Batch] = -1
}

// lost takes a flight off the books.
func (n *scheduleNode) lost(f *flight, cause error) {
	delete(n.flights, f.batch.ID)
	if f.batch.Raw != nil {
		f.batch.Raw.Reply <- cause
		return
	}
	for i := range f.core.Spans {
		n.slots[f.core.Spans[i].Slot].flight = nil
	}
	if err := n.core.Fail(f.batch.ID, cause, false); err != nil {
		panic(err)
	}
}

// retire brings failed batches back into use once nobody can touch them: no
// pool has a part in hand, and every group and merge has said so.
func (n *scheduleNode) retire(c *turn) {
	for b, missing := range n.retired {
		if missing >= 0 || b.Holds.Load() > 0 {
			continue
		}
		n.retired[b] = len(c.routes.groups) + len(c.routes.merges)
		for i := range c.routes.groups {
			c.send(c.routes.groups[i], &msg.Forget{Batch: b})
			c.send(c.routes.merges[i], &msg.Forget{Batch: b})
		}
	}
}

func (n *scheduleNode) forgotten(b *msg.Batch) {
	missing, ok := n.retired[b]
	if !ok {
		return
	}
	if missing--; missing > 0 {
		n.retired[b] = missing
		return
	}
	delete(n.retired, b)
	n.free = append(n.free, b)
}
