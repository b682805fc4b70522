package scheduler

import (
	"cmp"
	"slices"
)

// Suspended is a live request of a core that is not used any more, as another core goes on with it.
type Suspended struct {
	Request Request
	Started bool

	arrival uint64
	classes []int32 // seq.classIDs
}

// Suspend returns the live requests: those that have started, then those that wait, each in the order of their
// arrival. Nothing else is asked of the core afterwards.
func (c *Core) Suspend() []Suspended {
	list := make([]Suspended, 0, len(c.byID))
	for _, s := range c.byID {
		if s.ended == None {
			list = append(list, Suspended{Request: s.req, Started: s.started, arrival: s.arrival, classes: s.classIDs})
		}
	}
	slices.SortFunc(list, func(a, b Suspended) int {
		if a.Started != b.Started {
			if a.Started {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.arrival, b.arrival)
	})
	return list
}

// Follow makes c, which is new, go on with the numbers of batches and the counters of a core that was suspended.
func (c *Core) Follow(before *Core) {
	c.batches, c.arrivals, c.stats = before.batches, before.arrivals, before.stats
	c.high[1] = c.pool.Usable() // nothing is known of the use of c's blocks
}

// Adopt puts a request of a suspended core into the queue, in its old place there, with the tokens that it has
// generated so far. One that had started is treated as one that was preempted: its tokens are computed again,
// each in its numerics class, and the effect is Resumed. Neither MaxQueue nor a deadline keeps it out; the
// other errors are Add's.
func (c *Core) Adopt(x *Suspended, answer []int32) error {
	r := &x.Request
	if c.draining {
		return ErrDraining
	}
	if err := c.unfit(r); err != nil {
		return err
	}
	if len(answer) >= r.MaxNew {
		return ErrEmpty
	}
	s := c.newSeq()
	s.arrival, s.started, s.resumed = x.arrival, x.Started, x.Started
	if c.cfg.Classes {
		s.classIDs = x.classes
	}
	c.arrivals = max(c.arrivals, x.arrival+1)
	c.enter(s, r, answer)
	return nil
}
