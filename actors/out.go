package actors

import (
	"errors"
	"fmt"

	"krater/actors/hop"
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/files"
)

// outNode ends a batch's step on the last rank of this process and sends its rows to the next member: all
// hidden states with the step, or to the leader those that are wanted.
type outNode struct {
	stepEnds
	from      device.Stream // for batches that have none of their own
	to        *hopEnd
	back      bool // to the leader
	leader    bool // this process is the leader
	selection bool // the next rank begins with a layer that uses what the last one chose
	lost      func(e *hopEnd, cause error)
	turn      func(here bool) // see Options.Turn

	frame hop.Frame // reused, and so is its memory
	meta  []byte
	rows  [len(hop.Frame{}.Rows)][]byte
}

func (n *outNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if n.leader && b.Abandoned.Load() {
		c.send(c.routes.head, b)
		return
	}
	cause := n.pack(c, b)
	switch {
	case cause != nil:
		c.log.Error().Uint64("batch", b.ID).Err(cause).Msg("a step is lost before a hop")
		c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: cause, Repeatable: true})
		return
	case b.Abandoned.Load():
		c.send(c.routes.schedule, msg.NewReply(b))
		return
	case n.leader:
		c.send(c.routes.in, &b.Away) // before the frame can be back
	}
	n.turn(false) // before the next member begins, which may be on the same machine
	c.event.Bytes = uint64(n.frame.Bytes())
	n.frame.Sent = c.now()
	if err := n.to.Send(&n.frame); err != nil {
		n.lost(n.to, err)
		return
	}
	c.sent = 0
	if !n.leader {
		c.send(c.routes.schedule, msg.NewReply(b))
	}
}

// pack waits for the step on this process's last rank, and makes a frame of its rows.
func (n *outNode) pack(c *turn, b *msg.Batch) (cause error) {
	s := b.On(n.from)
	defer func() {
		if r := recover(); r != nil {
			cause = fmt.Errorf("rows to %s: %w", n.to.Name(), files.Caught(r))
		}
		if cause != nil { // what the device still has of the step would come in the way of the next
			cause = errors.Join(cause, s.Recover())
		}
	}()
	carry := !b.Abandoned.Load() // it does not become wanted again
	if b.Kept = carry && n.rank.keeps(n.heat, b); b.Kept {
		b.State.FetchRoutes(b.Stream)
	}
	if carry {
		n.copyRows(s, b)
	}
	if late, err := n.ended(c, b, s.Synchronize); err != nil || late != nil {
		return errors.Join(err, late)
	}
	if !carry {
		return nil
	}
	f := &n.frame
	*f = hop.Frame{Kind: hop.Step, Batch: uint8(b.Index), Epoch: b.Epoch, ID: b.ID, Follows: b.Follows, Bulk: len(b.State.Prefill) > 0 || b.Follows != 0, Rows: n.rows}
	if n.back {
		return nil
	}
	draws := b.Step.Draws // those are the leader's
	b.Step.Draws = nil
	n.meta, cause = b.Step.AppendBinary(n.meta[:0])
	b.Step.Draws, f.Meta = draws, n.meta
	return cause
}

// copyRows enqueues the copy of the rows to the host.
func (n *outNode) copyRows(s device.Stream, b *msg.Batch) {
	st, row := b.State, 4*b.State.Hidden.Cols
	if n.back {
		n.rows[0] = sized(n.rows[0], len(st.Wanted)*row)
		for i, at := range st.Wanted {
			s.CopyOut(n.rows[0][i*row:][:row], st.Hidden.RowRange(int(at), int(at)+1))
		}
	} else {
		n.rows[0] = sized(n.rows[0], st.Hidden.Bytes())
		s.CopyOut(n.rows[0], st.Hidden)
	}
	n.rows[1] = sized(n.rows[1], st.Marks.Bytes())
	s.CopyOut(n.rows[1], st.Marks)
	if n.selection {
		n.rows[2] = sized(n.rows[2], st.Selected.Bytes())
		s.CopyOut(n.rows[2], st.Selected)
	}
}

// sized is b with n bytes.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
