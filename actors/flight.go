package actors

import (
	"slices"

	"krater/actors/msg"
)

// inFlight is the core's batch with an id that is in flight, nil for none.
func (n *scheduleNode) inFlight(id uint64) *msg.Batch {
	for _, b := range n.batches {
		if b.Status == msg.InFlight && b.ID == id {
			return b
		}
	}
	return nil
}

// void gives up a batch whose tokens depend on one that is lost. The core knows. The actors still
// have it, and one of them brings it back or tells that it failed, too.
func (n *scheduleNode) void(id uint64) {
	b := n.inFlight(id)
	if b == nil {
		return
	}
	n.unstore(b)
	n.land(b)
	b.Abandoned.Store(true)
	b.Status = msg.Void
}

// take uses a credit, of the given queue if one is left.
func (n *scheduleNode) take(queue int) *msg.Batch {
	i := len(n.free) - 1
	for i > 0 && n.free[i].Queue != queue {
		i--
	}
	b := n.free[i]
	n.free = slices.Delete(n.free, i, i+1)
	b.Status, b.Epoch = msg.InFlight, n.epoch
	n.flying++
	b.Abandoned.Store(false)
	return b
}

// give returns a credit. No other actor knows the batch any more.
func (n *scheduleNode) give(b *msg.Batch) {
	b.Status, b.Raw = msg.Free, nil
	n.free = append(n.free, b)
}

// land removes a batch from those in flight.
func (n *scheduleNode) land(b *msg.Batch) {
	n.flying--
	n.raw = n.raw && b.Raw == nil
	for i := range b.Spans {
		switch r := n.slots[b.Spans[i].Slot]; b {
		case r.batch:
			r.batch, r.ahead = r.ahead, nil
		case r.ahead:
			r.ahead = nil
		}
	}
}
