package actors

import (
	"errors"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/stages"
)

// retireEvery is how often missing batches are looked at; they are rare.
const retireEvery = 5 * time.Millisecond

// failed takes a batch off the books that will not come back whole. Where the fault may pass
// (msg.Failed.Again) the core repeats the step, up to MaxRetries times a request: what the lost
// one was to compute is computed anew, once the batch is gone. Else its requests fail: a fault
// that the same input triggers would take the pipeline down with it. Other sequences
// go on: a batch writes the KV blocks of its own sequences only. A device may do so long after
// the failure, as it may for the batch ahead, which is void and still on its way; so the core
// keeps their blocks until they are back in use here.
//
// The batch is brought back into use in three steps:
//
//  1. No message about it is left (Held): no pool writes its state, no split has
//     its work, and a second report of its failure has been read.
//  2. Groups and merges forget what they keep of it, and say so. The first group waits for
//     what the device was given of it, and recovers its stream.
//  3. With the last answer it is free, and so are its blocks.
func (n *scheduleNode) failed(m *msg.Failed) {
	b := m.Batch
	if m.Epoch != b.Epoch {
		return // of a step that was given up
	}
	switch b.Status {
	case msg.Void:
	case msg.InFlight:
		n.lose(b, m.Cause, m.Repeatable)
	default:
		return // told before
	}
	n.awaitRetirement(b)
}

// refused takes a batch off the books whose inputs did not reach the device. Its own stream may
// have a part of them.
func (n *scheduleNode) refused(b *msg.Batch, cause error) {
	n.lose(b, cause, !errors.Is(cause, stages.ErrBatch))
	if b.Ranks[0].Stream != nil {
		n.awaitRetirement(b)
		return
	}
	n.gone(b)
}

// awaitRetirement has a batch that is off the books come back into use once nobody touches it.
func (n *scheduleNode) awaitRetirement(b *msg.Batch) {
	b.Abandoned.Store(true)
	for i := range b.Ranks {
		if l := &b.Ranks[i]; l.CallsHost {
			l.HostCalls.Stop()
		}
	}
	b.Status = msg.Lost
	n.lost = append(n.lost, b)
}

// lose takes a flight off the books.
func (n *scheduleNode) lose(b *msg.Batch, cause error, again bool) {
	n.epoch++
	requests := make([]uint64, len(b.Spans))
	for i := range b.Spans {
		requests[i] = b.Spans[i].ID
	}
	n.log.Error().Uint64("batch", b.ID).Uints64("requests", requests).Err(cause).Bool("repeatable", again).Msg("a batch is lost")
	n.dropHistories(b)
	n.removeInFlight(b)
	if raw := b.Raw; raw != nil {
		raw.Reply <- cause
		return
	}
	if err := n.core.Fail(b.ID, cause, again); err != nil {
		panic(err)
	}
}

// retire asks for missing batches to be forgotten once no message is left.
func (n *scheduleNode) retire(c *turn) {
	for _, b := range n.lost {
		if b.Status != msg.Lost || b.Held() {
			continue
		}
		b.Status = msg.Forgetting
		b.Forgets = len(c.routes.groups) + len(c.routes.merges)
		for i := range c.routes.groups {
			c.send(c.routes.groups[i], &msg.Forget{Batch: b})
			c.send(c.routes.merges[i], &msg.Forget{Batch: b})
		}
	}
}

func (n *scheduleNode) forgotten(b *msg.Batch) {
	if b.Status != msg.Forgetting {
		return
	}
	if b.Forgets--; b.Forgets > 0 {
		return
	}
	n.lost = slices.DeleteFunc(n.lost, func(other *msg.Batch) bool { return other == b })
	n.gone(b)
}

// gone returns the credit of a lost batch that nobody works on any more, and its blocks.
func (n *scheduleNode) gone(b *msg.Batch) {
	if b.Raw == nil {
		if err := n.core.Gone(b.ID); err != nil {
			panic(err)
		}
	}
	n.returnCredit(b)
}
