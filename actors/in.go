package actors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"krater/actors/hop"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler/files"
)

// errOverdue: the workers did not send a step back in time.
var errOverdue = errors.New("it did not come back in time")

// inNode takes batches back from the last worker: it writes their wanted rows into the first rank's, and
// sends them to the head. While a batch is away it belongs to this actor, which also gives it up.
type inNode struct {
	away     []*msg.Batch // by index; nil: it is here
	back     []*msg.Batch // with their rows, but behind one that is away: see Batch.Follows
	from     *hopEnd
	ahead    func() time.Duration // how far the clock of the last worker is ahead of this one's; nil: they are one
	stream   device.Stream        // for batches that have none of their own
	deadline time.Duration
	lost     func(e *hopEnd, cause error)
	missed   int // steps in a row that were late
}

func (n *inNode) receive(c *turn, m any) {
	switch m := m.(type) {
	case *msg.Away:
		c.event.Kind = trace.Control
		m.Since = c.now()
		n.away[m.Batch.Index] = m.Batch
	case *hop.Frame:
		n.arrived(c, m)
		m.Release()
	case *msg.Failed: // at a worker
		if b := m.Batch; n.away[b.Index] == b && b.Epoch == m.Epoch && b.ID == m.Step {
			n.away[b.Index] = nil
			c.send(c.routes.schedule, m)
			n.release(c)
		}
	case *msg.Tick:
		n.look(c)
	case *cut:
		n.lost(n.from, m.err)
	}
}

// look gives up batches that are late.
func (n *inNode) look(c *turn) {
	for i, b := range n.away {
		if b == nil || c.now()-b.Away.Since < int64(n.deadline) {
			continue
		}
		n.away[i] = nil
		n.from.missed.Add(1)
		cause := fmt.Errorf("%w (%v)", errOverdue, n.deadline)
		c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: cause, Repeatable: true})
		if n.missed++; n.missed > 1 {
			n.lost(n.from, cause)
		}
	}
	n.release(c)
}

// release sends batches that are back to the head, unless one that they follow is still away. A worker that fails one of them says so
// over another connection than that by which the next one comes.
func (n *inNode) release(c *turn) {
	n.back = slices.DeleteFunc(n.back, func(b *msg.Batch) bool {
		if slices.ContainsFunc(n.away, func(p *msg.Batch) bool { return p != nil && p.ID <= b.Follows }) {
			return false
		}
		c.send(c.routes.head, b)
		return true
	})
}

// arrived takes a batch that is back. A frame about a step that was given up, or a second one, is dropped.
func (n *inNode) arrived(c *turn, f *hop.Frame) {
	var b *msg.Batch
	if int(f.Batch) < len(n.away) {
		b = n.away[f.Batch]
	}
	if b == nil || f.Epoch != b.Epoch || f.ID != b.ID {
		n.from.late.Add(1)
		return
	}
	n.away[f.Batch] = nil
	b.Enter(0)
	b.Away.Describe(c.event)
	now, sent := c.now(), f.Sent
	if n.ahead != nil {
		sent -= int64(n.ahead())
	}
	sent = min(sent, c.event.Started) // clocks are not known to better than this
	n.from.way.Add(now - sent)
	c.event.Kind, c.event.Bytes, c.event.Enqueued = trace.Hop, uint64(f.Bytes()), sent
	if cause := n.write(b, f); cause != nil {
		n.from.failures.Add(1)
		c.log.Error().Uint64("batch", b.ID).Err(cause).Msg("a step is lost behind a hop")
		c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: cause, Repeatable: true})
	} else {
		n.missed = 0
		n.back = append(n.back, b)
	}
	n.release(c)
}

// write copies a frame's rows to the first rank.
func (n *inNode) write(b *msg.Batch, f *hop.Frame) (cause error) {
	st, s := b.State, b.On(n.stream)
	defer func() {
		if r := recover(); r != nil {
			cause = fmt.Errorf("rows from %s: %w", n.from.Name(), files.Caught(r))
		}
		if cause != nil {
			cause = errors.Join(cause, s.Recover())
		}
	}()
	row := 4 * st.Hidden.Cols
	if err := fits(f, len(st.Wanted)*row, st.Marks.Bytes(), 0); err != nil {
		return fmt.Errorf("from %s: %w", n.from.Name(), err)
	}
	for i, at := range st.Wanted {
		s.CopyIn(st.Hidden.RowRange(int(at), int(at)+1), f.Rows[0][i*row:][:row])
	}
	s.CopyIn(st.Marks, f.Rows[1])
	return s.Synchronize() // the frame's memory is given back
}

// fits checks the sizes of a frame's rows. That their bytes are as sent is checked by the connection.
func fits(f *hop.Frame, hidden, marks, selected int) error {
	if len(f.Rows[0]) != hidden || len(f.Rows[1]) != marks || len(f.Rows[2]) != selected {
		return fmt.Errorf("%w: rows of %d, %d and %d bytes, want %d, %d and %d", errHop,
			len(f.Rows[0]), len(f.Rows[1]), len(f.Rows[2]), hidden, marks, selected)
	}
	return nil
}

// held implements holder.
func (n *inNode) held() []*msg.Batch {
	return slices.DeleteFunc(slices.Concat(n.away, n.back), func(b *msg.Batch) bool { return b == nil })
}

// sideNode talks with one worker about batches that fail and are given up.
type sideNode struct {
	batches  []*msg.Batch
	to       *hopEnd
	deadline time.Duration
	lost     func(e *hopEnd, cause error)
	asked    []forgetting // by batch
}

// forgetting is a batch that a worker was asked to forget.
type forgetting struct {
	batch *msg.Batch // nil: none
	epoch uint32
	at    int64
}

func (n *sideNode) receive(c *turn, m any) {
	switch m := m.(type) {
	case *msg.Forget:
		b := m.Batch
		n.asked[b.Index] = forgetting{b, b.Epoch, c.now()}
		if err := n.to.Send(&hop.Frame{Kind: hop.Forget, Batch: uint8(b.Index), Epoch: b.Epoch, ID: b.ID, Sent: c.now()}); err != nil {
			n.lost(n.to, err)
		}
	case *hop.Frame:
		n.answered(c, m)
		m.Release()
	case *msg.Tick:
		for _, a := range n.asked {
			if a.batch != nil && c.now()-a.at >= int64(n.deadline) {
				n.lost(n.to, fmt.Errorf("it does not give a batch up (%v)", n.deadline))
			}
		}
	case *cut:
		n.lost(n.to, m.err)
	}
}

// causeMost bounds the text of a cause in a frame.
const causeMost = 1 << 10

func (n *sideNode) answered(c *turn, f *hop.Frame) {
	if int(f.Batch) >= len(n.batches) {
		n.lost(n.to, fmt.Errorf("%w: about batch %d of %d", errHop, f.Batch, len(n.batches)))
		return
	}
	b := n.batches[f.Batch]
	if f.Kind == hop.Failed {
		cause := fmt.Errorf("%s: %q", n.to.Name(), f.Meta[:min(len(f.Meta), causeMost)])
		c.send(c.routes.in, &msg.Failed{Batch: b, Epoch: f.Epoch, Step: f.ID, Cause: cause, Repeatable: f.Repeatable})
		return
	}
	if a := &n.asked[f.Batch]; a.batch == b && a.epoch == f.Epoch {
		*a = forgetting{}
		c.send(c.routes.schedule, &msg.Forgotten{Batch: b})
	}
}
