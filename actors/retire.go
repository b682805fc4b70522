package actors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/stages"
)

// retireEvery is how often lost batches are looked at; they are rare.
const retireEvery = 5 * time.Millisecond

// failed takes a batch that will not come back whole out of the schedule. If the fault may pass
// (msg.Failed.Repeatable), the core repeats the step, up to MaxRetries times per request: the work
// of the lost step is done again once the batch is gone. Otherwise its requests fail, because a
// fault that the same input triggers would take the pipeline down with it. Other sequences go on: a
// batch writes the KV blocks of its own sequences only. A device may do so long after the failure,
// also for the batch ahead, which is void and still in flight. So the core keeps their blocks until
// the batches are free again.
//
// The batch becomes free in three steps:
//
// 1. No message about it is left (Held): no pool writes its state, no split has its work, and a
// second report of its failure has been read. 2. Groups and merges forget what they keep of it, and
// answer. The first group waits for the work that the device was given for it, and recovers its
// stream. 3. With the last answer the batch is free, and so are its blocks.
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
		return // reported before
	}
	n.awaitRetirement(b)
}

// refused takes a batch whose inputs did not reach the device out of the schedule. Its own stream
// may have a part of them.
func (n *scheduleNode) refused(b *msg.Batch, cause error) {
	n.lose(b, cause, !errors.Is(cause, stages.ErrBatch))
	if b.Ranks[0].Stream != nil {
		n.awaitRetirement(b)
		return
	}
	n.gone(b)
}

// awaitRetirement brings a lost batch back into use once no actor touches it.
func (n *scheduleNode) awaitRetirement(b *msg.Batch) {
	giveBatchUp(b)
	n.lost = append(n.lost, b)
}

// giveBatchUp has no actor compute anything for a batch any more.
func giveBatchUp(b *msg.Batch) {
	b.Abandoned.Store(true)
	for i := range b.Ranks {
		l := &b.Ranks[i]
		l.State.NoMasks()
		if l.CallsHost {
			l.HostCalls.Stop()
		}
	}
	b.Status = msg.Lost
}

// lose takes a batch out of the schedule: the core repeats its step, or its requests fail.
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

// retire asks the actors to forget lost batches once no message about them is left.
func retire(c *turn, lost []*msg.Batch) {
	for _, b := range lost {
		if b.Status != msg.Lost || b.Held() {
			continue
		}
		b.Status = msg.Forgetting
		b.Forgets = len(c.routes.keep)
		for _, to := range c.routes.keep {
			c.send(to, &msg.Forget{Batch: b})
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

// gone gives back the blocks of a lost batch that no actor works on any more, and its credit. If a copy
// between two ranks hangs, which may write rows later on, the batch needs other rows first.
func (n *scheduleNode) gone(b *msg.Batch) {
	if b.Raw == nil {
		if err := n.core.Gone(b.ID); err != nil {
			panic(err)
		}
	}
	n.renew(b)
	n.returnCredit(b)
}

// renewRows gives a batch other rows on the ranks to which copies hang. The old ones stay allocated, for
// the copies write to them if they ever come to an end.
func (p *Pipeline) renewRows(b *msg.Batch) {
	for i := range b.Ranks {
		l := &b.Ranks[i]
		if l.Hop == nil || l.Hop.Settled() {
			continue
		}
		r := p.ranks[i]
		if !l.Hop.Leave() {
			p.lose(i, r.name, fmt.Errorf("copies from rank %d to rank %d end on no link", i-1, i))
			return
		}
		x, err := p.newRows(r)
		if err != nil {
			p.lose(i, r.name, fmt.Errorf("copies from rank %d hang, and there is no memory for other rows: %w", i-1, err))
			return
		}
		l.State = &stages.State{Step: b.Step, Rows: x}
	}
}
