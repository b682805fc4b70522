package actors

import (
	"slices"

	"krater/actors/msg"
	"krater/scheduler"
)

// flight is what the driver keeps of a batch.
type flight struct {
	batch *msg.Batch
	core  scheduler.Batch // the decision it carries; zero for a raw step
	live  int             // spans whose request has not ended
	epoch uint32          // that it was sent in
	drawn bool            // the device chooses all its tokens
	where whereabouts
	// forgets is how many actors have not yet answered that they forgot the batch.
	forgets int
}

// whereabouts of a batch.
type whereabouts uint8

const (
	here       whereabouts = iota // free
	away                          // on its way
	void                          // on its way, and off the books
	missing                       // failed; messages about it may be left
	forgetting                    // failed; those that may keep it were asked to forget it
)

func (f *flight) missing() bool { return f.where == missing }

// carrying is the flight of a batch of the core's that is on its way, nil for none.
func (n *scheduleNode) carrying(id uint64) *flight {
	for _, f := range n.flight {
		if f.where == away && f.core.ID == id {
			return f
		}
	}
	return nil
}

// void takes a batch off the books whose tokens depend on one that is lost. The core knows.
// The actors still have it, and one of them brings it back or tells that it failed, too.
func (n *scheduleNode) void(id uint64) {
	f := n.carrying(id)
	if f == nil {
		return
	}
	n.unstore(f)
	n.land(f)
	f.batch.Abandoned.Store(true)
	f.where = void
}

// take uses a credit, of the given queue if one is left.
func (n *scheduleNode) take(queue int) *flight {
	i := len(n.free) - 1
	for i > 0 && n.free[i].batch.Queue != queue {
		i--
	}
	f := n.free[i]
	n.free = slices.Delete(n.free, i, i+1)
	f.where, f.epoch, f.batch.Epoch = away, n.epoch, n.epoch
	n.flying++
	f.batch.Abandoned.Store(false)
	return f
}

// give returns a credit. Nobody else knows the batch any more.
func (n *scheduleNode) give(f *flight) {
	f.where, f.core, f.batch.Raw = here, scheduler.Batch{}, nil
	n.free = append(n.free, f)
}

// land takes a batch off its way.
func (n *scheduleNode) land(f *flight) {
	n.flying--
	n.raw = n.raw && f.batch.Raw == nil
	for i := range f.core.Spans {
		switch r := n.slots[f.core.Spans[i].Slot]; f {
		case r.flight:
			r.flight, r.ahead = r.ahead, nil
		case r.ahead:
			r.ahead = nil
		}
	}
}
