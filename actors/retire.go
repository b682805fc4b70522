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
	f := n.flight[m.Batch]
	if m.Epoch != f.epoch {
		return // of a step that was given up
	}
	switch f.where {
	case void:
	case away:
		n.lose(f, m.Cause, m.Again)
	default:
		return // told before
	}
	n.miss(f)
}

// refused takes a batch off the books whose inputs did not reach the device. Its own stream may
// have a part of them.
func (n *scheduleNode) refused(f *flight, cause error) {
	n.lose(f, cause, !errors.Is(cause, stages.ErrBatch))
	if f.batch.Ranks[0].Stream != nil {
		n.miss(f)
		return
	}
	n.gone(f)
}

// miss has a batch that is off the books come back into use once nobody touches it.
func (n *scheduleNode) miss(f *flight) {
	f.batch.Abandoned.Store(true)
	for i := range f.batch.Ranks {
		if l := &f.batch.Ranks[i]; l.Asks {
			l.HostCalls.Stop()
		}
	}
	f.where = missing
	n.lost = append(n.lost, f)
}

// lose takes a flight off the books.
func (n *scheduleNode) lose(f *flight, cause error, again bool) {
	n.epoch++
	requests := make([]uint64, len(f.core.Spans))
	for i := range f.core.Spans {
		requests[i] = f.core.Spans[i].ID
	}
	n.log.Error().Uint64("batch", f.batch.ID).Uints64("requests", requests).Err(cause).Bool("repeatable", again).Msg("a batch is lost")
	n.unstore(f)
	n.land(f)
	if raw := f.batch.Raw; raw != nil {
		raw.Reply <- cause
		return
	}
	if err := n.core.Fail(f.batch.ID, cause, again); err != nil {
		panic(err)
	}
}

// retire asks for missing batches to be forgotten once no message is left.
func (n *scheduleNode) retire(c *turn) {
	for _, f := range n.lost {
		if f.where != missing || f.batch.Held() {
			continue
		}
		f.where = forgetting
		f.forgets = len(c.routes.groups) + len(c.routes.merges)
		for i := range c.routes.groups {
			c.send(c.routes.groups[i], &msg.Forget{Batch: f.batch})
			c.send(c.routes.merges[i], &msg.Forget{Batch: f.batch})
		}
	}
}

func (n *scheduleNode) forgotten(b *msg.Batch) {
	f := n.flight[b]
	if f.where != forgetting {
		return
	}
	if f.forgets--; f.forgets > 0 {
		return
	}
	n.lost = slices.DeleteFunc(n.lost, func(other *flight) bool { return other == f })
	n.gone(f)
}

// gone returns the credit of a lost batch that nobody works on any more, and its blocks.
func (n *scheduleNode) gone(f *flight) {
	if f.batch.Raw == nil {
		if err := n.core.Gone(f.core.ID); err != nil {
			panic(err)
		}
	}
	n.give(f)
}
