package actors

import (
	"slices"

	"krater/actors/msg"
	"krater/scheduler"
)

// inFlight returns the core's batch with an id that is in flight, nil for none.
func (n *scheduleNode) inFlight(id uint64) *msg.Batch {
	for _, b := range n.batches {
		if b.Status == msg.InFlight && b.ID == id {
			return b
		}
	}
	return nil
}

// giveUp gives up a batch whose tokens depend on one that is lost. The core knows. The actors still
// have it, and one of them brings it back or reports that it failed, too.
func (n *scheduleNode) giveUp(id uint64) {
	b := n.inFlight(id)
	if b == nil {
		return
	}
	n.dropHistories(b)
	n.removeInFlight(b)
	b.Abandoned.Store(true)
	b.Status = msg.Void
	n.renewSamplers(b)
}

// renewSamplers makes the samplers of a batch's requests anew. Another actor may still make choices for the batch, which do not count.
func (n *scheduleNode) renewSamplers(b *msg.Batch) {
	for i := range b.Spans {
		r := n.live[b.Spans[i].ID]
		if !b.Spans[i].Last || r == nil || r.ended || r.submit.Request.Scored {
			continue
		}
		sampler, err := again(r.submit, r.tokens[r.submit.Request.PromptLen:])
		if err != nil {
			n.blame(r, b.Spans[i].ID, err)
			n.core.Cancel(b.Spans[i].ID, scheduler.Failed)
			continue
		}
		r.submit.Sampler = sampler
	}
}

// takeCredit takes a free batch: of the queue, where the device has several and one is left.
func (n *scheduleNode) takeCredit(queue int) *msg.Batch {
	i := len(n.credits) - 1
	for i > 0 && n.credits[i].Queue != queue {
		i--
	}
	b := n.credits[i]
	n.credits = slices.Delete(n.credits, i, i+1)
	b.Status, b.Epoch = msg.InFlight, n.epoch
	n.flying++
	b.Abandoned.Store(false)
	b.Submitted.Store(false)
	return b
}

// returnCredit returns a credit. No other actor knows the batch any more.
func (n *scheduleNode) returnCredit(b *msg.Batch) {
	b.Status, b.Raw = msg.Free, nil
	n.credits = append(n.credits, b)
}

// removeInFlight removes a batch from those in flight.
func (n *scheduleNode) removeInFlight(b *msg.Batch) {
	n.flying--
	n.raw = n.raw && b.Raw == nil
}

// leave takes a request that has ended off the batches in flight that it is in. A batch without a request is abandoned.
func (n *scheduleNode) leave(id uint64) {
	for _, b := range n.batches {
		if b.Status != msg.InFlight || b.Raw != nil || !slices.ContainsFunc(b.Spans, func(sp scheduler.Span) bool { return sp.ID == id }) {
			continue
		}
		if b.Live--; b.Live == 0 {
			b.Abandoned.Store(true)
		}
	}
}
