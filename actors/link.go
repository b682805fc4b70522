package actors

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/files"
	"krater/stages/link"
)

// linkNode takes a batch from one layer group to the next. Within a rank both compute on the same
// memory: the batch moves and its hidden states stay where they are, and bytes counts what a link
// between two memories would have to carry. Between ranks it carries the rows to the next one.
type linkNode struct {
	to    int            // index of the group it leads to
	width int            // bytes of one row of hidden states
	bytes *atomic.Uint64 // within a rank
	cross *crossing      // nil within a rank
}

// crossing is the way from one rank to the next.
type crossing struct {
	stepEnd
	rank       int           // the next one
	from, into device.Stream // of the two devices, for batches that have none of their own
	selection  bool          // the next rank begins with a layer that uses what the last one chose
	// Both ranks are accelerators: the host does not wait between them.
	accelerators bool
	src, dst     [3]device.Mat // reused
}

func (n *linkNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if c.event.Bytes = uint64(b.State.T * n.width); n.cross == nil {
		n.bytes.Add(c.event.Bytes)
	}
	if n.cross != nil {
		if cause := n.cross.pass(c, b); cause != nil {
			c.log.Error().Uint64("batch", b.ID).Err(cause).Msg("a step is lost between two ranks")
			c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: cause, Repeatable: true})
			return
		}
	}
	c.send(c.routes.groups[n.to], b)
}

// pass takes a batch to the next rank. On a failure of the link or of a device the step is lost,
// but the device may be well.
func (n *crossing) pass(c *turn, b *msg.Batch) (cause error) {
	to := &b.Ranks[n.rank]
	s := to.On(n.into)
	defer func() {
		if r := recover(); r != nil {
			cause = fmt.Errorf("rank %d: %w", n.rank, files.Caught(r))
		}
		if cause != nil { // what they still have of the step would come in the way of the next
			cause = errors.Join(cause, n.from.Recover(), n.into.Recover())
		}
	}()
	carry := !b.Abandoned.Load() // it does not become wanted again
	to.State.Load(s)
	if b.Kept = carry && n.stepEnd.rank.keeps(n.heat, b); b.Kept {
		b.State.FetchRoutes(b.Stream)
	}
	to.Arriving = carry
	if lost, err := n.leave(c, b, to, s); err != nil {
		return fmt.Errorf("link from rank %d to rank %d (%s): %w", n.rank-1, n.rank, to.Hop.Name(), err)
	} else if lost != nil {
		return lost
	}
	if carry {
		to.State.Begin(s)
	}
	if to.Stream == nil {
		if err := s.Synchronize(); err != nil {
			return fmt.Errorf("rank %d: %w", n.rank, err)
		}
	}
	b.Enter(n.rank)
	return nil
}

// leave carries the rows of a batch, unless it is abandoned, and ends the step on the first rank.
// Between accelerators it only waits for steps in which the host takes part. The step is ended, and
// the measurements of the device are recorded, after the last rank.
func (n *crossing) leave(c *turn, b *msg.Batch, to *msg.Local, s device.Stream) (lost, err error) {
	if !n.accelerators {
		return n.end(c, b, 0, func() error {
			if !to.Arriving {
				return b.On(n.from).Synchronize()
			}
			return n.carry(b, to, s)
		})
	}
	b.Unended = to.Arriving
	if !to.Arriving {
		b.Stream.Repeat(0) // a partly enqueued step must not be captured to be replayed
	}
	if b.Serving || !to.Arriving {
		if err := b.Stream.Synchronize(); err != nil {
			return n.served(b), err
		}
		if lost := n.served(b); lost != nil || !to.Arriving {
			return lost, nil
		}
	}
	err = n.carry(b, to, s)
	b.Stream.Submit()
	return nil, err
}

// carry carries the rows of a batch.
func (n *crossing) carry(b *msg.Batch, to *msg.Local, s device.Stream) error {
	n.src = [...]device.Mat{b.State.Hidden, b.State.Marks, b.State.Selected}
	n.dst = [...]device.Mat{to.State.Hidden, to.State.Marks, to.State.Selected}
	count := len(n.src)
	if !n.selection {
		count--
	}
	return to.Hop.Carry(b.On(n.from), s, n.src[:count], n.dst[:count])
}

// linkCost returns the cost of a link between two ranks of this process.
func linkCost(c link.Cost) engine.Link {
	return engine.Link{Kind: c.Kind, Hops: c.Hops, Bytes: c.Bytes, Faults: c.Faults, Time: c.Time}
}

// linkCosts adds up what links have cost, by kind.
func (p *Pipeline) linkCosts() []engine.Link {
	list := slices.Clone(p.linksBefore)
	add := func(c engine.Link) {
		i := slices.IndexFunc(list, func(l engine.Link) bool { return l.Kind == c.Kind })
		if i < 0 {
			i = len(list)
			list = append(list, engine.Link{Kind: c.Kind})
		}
		l := &list[i]
		l.Hops, l.Bytes, l.Faults, l.Time = l.Hops+c.Hops, l.Bytes+c.Bytes, l.Faults+c.Faults, l.Time+c.Time
		l.Within = max(l.Within, c.Within)
	}
	add(engine.Link{Kind: sameMemory, Bytes: p.stayed.Load()})
	for i := 1; i < len(p.pairs); i++ {
		for _, c := range p.pairs[i].Costs() {
			add(linkCost(c))
		}
	}
	if h := p.help; h != nil {
		for _, pair := range h.pair {
			for _, c := range pair.Costs() {
				add(linkCost(c))
			}
		}
	}
	for _, c := range p.hopCosts() {
		add(c)
	}
	return list
}
