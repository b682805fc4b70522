package actors

import (
	"errors"
	"fmt"
	"sync/atomic"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/files"
)

// linkNode takes a batch from one layer group to the next. Within a rank both compute on the same
// memory: the batch moves and its hidden states stay where they are, and bytes counts what a link
// between two memories would have to carry. Between ranks it ends the step on the first rank and
// copies its rows to the next one.
type linkNode struct {
	to    int // index of the group it leads to
	width int // bytes of one row of hidden states
	bytes *atomic.Uint64
	cross *crossing // nil within a rank
}

// crossing is the way from one rank to the next.
type crossing struct {
	stepEnd
	rank       int           // the next one
	from, into device.Stream // of the two devices, for batches that have none of their own
	selection  bool          // the next rank begins with a layer that uses what the last one chose
	src, dst   [3]device.Mat // reused
}

func (n *linkNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	c.event.Bytes = uint64(b.State.T * n.width)
	n.bytes.Add(c.event.Bytes)
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
	wait := b.On(n.from).Synchronize
	if carry {
		n.src = [...]device.Mat{b.State.Hidden, b.State.Marks, b.State.Selected}
		n.dst = [...]device.Mat{to.State.Hidden, to.State.Marks, to.State.Selected}
		count := len(n.src)
		if !n.selection {
			count--
		}
		wait = func() error { return to.Link.Carry(b.On(n.from), s, n.src[:count], n.dst[:count]) }
	}
	if late, err := n.end(c, b, wait); err != nil {
		return fmt.Errorf("link from rank %d to rank %d (%s): %w", n.rank-1, n.rank, to.Link.Name(), err)
	} else if late != nil {
		return fmt.Errorf("rank %d: the host did not do its part: %w", n.rank-1, late)
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
