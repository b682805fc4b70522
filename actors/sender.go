package actors

import (
	"fmt"
	"slices"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/scheduler/files"
)

// sender sends filled batches in flight: the schedule actor's, and that of a segment's keeper.
type sender struct {
	batches []*msg.Batch // all
	ranks   []*rank
	stream  device.Stream    // for batches that have none of their own
	filled  []*msg.Batch     // to be sent, as soon as they may: see sendFilled
	phases  []dispatch.Phase // by rank: of the batches in flight, where experts' slots are lent
}

// sendFilled sends filled batches in flight, in order. Where decode lends slots for experts to
// prompts, batches of one phase have to be back before one of the other leaves. It reports
// whether a batch was refused: its credit may be free again.
func (n *sender) sendFilled(c *turn, to address, refuse func(b *msg.Batch, cause error)) (refused bool) {
	for len(n.filled) > 0 {
		b := n.filled[0]
		if n.others() > 0 && n.changesPhase(b.Step.Total()) {
			break
		}
		n.filled = slices.Delete(n.filled, 0, 1)
		if err := n.lendSlots(b); err != nil {
			refuse(b, fmt.Errorf("batch %d: %w", b.ID, err))
			refused = true
			continue
		}
		c.send(to, b)
	}
	return refused
}

// others returns the number of batches that are neither free nor filled.
func (n *sender) others() int {
	others := -len(n.filled)
	for _, b := range n.batches {
		if b.Status != msg.Free {
			others++
		}
	}
	return others
}

// changesPhase reports whether a batch of that many rows is of another phase than those in flight, on
// a rank that lends slots.
func (n *sender) changesPhase(rows int) bool {
	for i, r := range n.ranks {
		if r.place != nil && r.place.Lends() && r.place.Phase(rows) != n.phases[i] {
			return true
		}
	}
	return false
}

// lendSlots readies the slots for experts for a batch that leaves.
func (n *sender) lendSlots(b *msg.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("slots for experts: %w", files.Caught(r))
		}
	}()
	rows := b.Step.Total()
	for i, r := range n.ranks {
		if r.place == nil {
			continue
		}
		if r.place.Lends() {
			n.phases[i] = r.place.Phase(rows)
		}
		if err := r.place.Enter(b.Ranks[i].On(r.stream), rows); err != nil {
			return err
		}
		if err := r.place.Learn(rows, n.quiet(b, i)); err != nil {
			return err
		}
	}
	return nil
}

// quiet reports whether every batch in flight but b was given to its devices whole, so that what is enqueued
// on a rank now comes between two steps. The batches belong to other actors, which change the rank that they are on.
func (n *sender) quiet(b *msg.Batch, rank int) bool {
	return !slices.ContainsFunc(n.batches, func(x *msg.Batch) bool {
		return x != b && x.Status == msg.InFlight && x.Ranks[rank].Stream != nil && !x.Submitted.Load() && !slices.Contains(n.filled, x)
	})
}
