package actors

import (
	"fmt"
	"slices"
	"time"

	"krater/actors/hop"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler/files"
)

// keeperNode has the batches of a segment that are not in work there: as many as the leader's pipeline has. It fills
// them from frames, lends slots for experts, and answers for batches that fail.
type keeperNode struct {
	sender
	trace     *trace.Registry
	alarm     func(in time.Duration)
	renew     func(b *msg.Batch) // gives a lost batch rows that no copy touches
	in, side  *hopEnd
	selection bool      // the first layer uses what the one before it chose
	kept      []keeping // by batch
	lost      []*msg.Batch
	failed    func(e *hopEnd, cause error)
}

// keeping has the keeper's notes about a batch.
type keeping struct {
	frame *hop.Frame // of the step in work, until the devices have its rows
	next  *hop.Frame // that came before the step before it was seen to be done
	floor uint32     // frames of this epoch are too old; valid with given
	given bool       // a step was abandoned
	give  bool       // the leader waits until nothing uses the batch's memory
}

func (n *keeperNode) receive(c *turn, m any) {
	switch m := m.(type) {
	case *hop.Frame:
		if int(m.Batch) >= len(n.batches) {
			n.failed(n.in, fmt.Errorf("%w: about batch %d of %d", errHop, m.Batch, len(n.batches)))
			m.Release()
			return
		}
		if m.Kind == hop.Forget {
			n.forget(c, m)
			m.Release()
		} else {
			n.step(c, m)
		}
	case *msg.Reply:
		c.event.Kind = trace.Control
		if b := m.Batch; m.Epoch == b.Epoch && b.Status == msg.InFlight {
			n.free(c, b)
			m.Free()
		}
	case *msg.Failed:
		if b := m.Batch; m.Epoch == b.Epoch && b.Status == msg.InFlight {
			n.report(c, b, m.Cause, m.Repeatable)
			giveBatchUp(b)
			n.lost = append(n.lost, b)
		}
	case *msg.Forgotten:
		if b := m.Batch; b.Status == msg.Forgetting {
			if b.Forgets--; b.Forgets == 0 {
				n.lost = slices.DeleteFunc(n.lost, func(x *msg.Batch) bool { return x == b })
				n.renew(b)
				n.free(c, b)
			}
		}
	case *cut:
		n.failed(n.in, m.err)
	}
	n.sendFilled(c, c.routes.groups[0], func(b *msg.Batch, cause error) { n.refuse(c, b, cause) })
	retire(c, n.lost)
	if len(n.lost) > 0 {
		n.alarm(retireEvery)
	}
}

// step takes a frame with a step.
func (n *keeperNode) step(c *turn, f *hop.Frame) {
	b, k := n.batches[f.Batch], &n.kept[f.Batch]
	switch {
	case k.given && f.Epoch <= k.floor:
		n.in.late.Add(1)
		f.Release()
	case b.Status == msg.Free:
		n.begin(c, b, f)
	case k.next == nil:
		k.next = f
	default:
		f.Release()
		n.failed(n.in, fmt.Errorf("%w: a third step of batch %d", errHop, f.Batch))
	}
}

// begin starts a step of a free batch.
func (n *keeperNode) begin(c *turn, b *msg.Batch, f *hop.Frame) {
	k := &n.kept[b.Index]
	k.frame = f
	b.ID, b.Follows, b.Epoch, b.MicroBatch, b.Status = f.ID, f.Follows, f.Epoch, b.Index, msg.InFlight
	b.Abandoned.Store(false)
	b.Submitted.Store(false)
	noted, others := n.trace.Detail(b.ID)
	b.Quiet, b.Others = !noted, others
	clocked(b, noted)
	timed(b, func(rank int) bool { return noted && n.ranks[rank].times })
	if cause := n.load(b, f); cause != nil {
		n.in.failures.Add(1)
		n.refuse(c, b, cause)
		return
	}
	n.in.way.Add(c.now() - f.Sent)
	e := c.event
	e.Kind, e.Batch, e.Lane, e.Epoch, e.Bytes, e.Rows, e.Enqueued = trace.Hop, b.ID, uint8(b.MicroBatch), b.Epoch, uint64(f.Bytes()), uint32(b.Step.Total()), f.Sent
	n.filled = append(n.filled, b)
}

// load fills a batch's step and its rows on the first rank.
func (n *keeperNode) load(b *msg.Batch, f *hop.Frame) (cause error) {
	b.Enter(0)
	st, s := b.State, b.On(n.stream)
	defer func() {
		if r := recover(); r != nil {
			cause = fmt.Errorf("rows from %s: %w", n.in.Name(), files.Caught(r))
		}
	}()
	if err := b.Step.UnmarshalBinary(f.Meta); err != nil {
		return err
	}
	prepareStep(n.ranks, b)
	st.Load(s)
	selected := 0
	if n.selection {
		selected = st.Selected.Bytes()
	}
	if err := fits(f, st.Hidden.Bytes(), st.Marks.Bytes(), selected); err != nil {
		return fmt.Errorf("from %s: %w", n.in.Name(), err)
	}
	for i, m := range [...]device.Mat{st.Hidden, st.Marks, st.Selected} {
		if len(f.Rows[i]) > 0 {
			s.CopyIn(m, f.Rows[i])
		}
	}
	st.Begin(s)
	if b.Stream != nil {
		return nil
	}
	return s.Synchronize()
}

// refuse reports a step that does not begin. The batch's own stream may have a part of it.
func (n *keeperNode) refuse(c *turn, b *msg.Batch, cause error) {
	n.report(c, b, cause, true)
	giveBatchUp(b)
	n.lost = append(n.lost, b)
}

// report tells the leader that a step failed here.
func (n *keeperNode) report(c *turn, b *msg.Batch, cause error, again bool) {
	c.log.Error().Uint64("batch", b.ID).Err(cause).Bool("repeatable", again).Msg("a step is lost")
	n.note(b.Index, b.Epoch)
	text := cause.Error()
	n.send(c, &hop.Frame{Kind: hop.Failed, Batch: uint8(b.Index), Epoch: b.Epoch, ID: b.ID, Repeatable: again, Meta: []byte(text[:min(len(text), causeMost)])})
}

// note raises the epoch of which no step of a batch is taken any more.
func (n *keeperNode) note(index int, epoch uint32) {
	k := &n.kept[index]
	if !k.given || epoch > k.floor {
		k.given, k.floor = true, epoch
	}
	if k.next != nil && k.next.Epoch <= k.floor {
		k.next.Release()
		k.next = nil
	}
}

// forget abandons a batch, and answers when nothing uses its memory any more. A batch in work is passed on without being computed.
func (n *keeperNode) forget(c *turn, f *hop.Frame) {
	b := n.batches[f.Batch]
	n.note(b.Index, f.Epoch)
	if b.Status == msg.Free || b.Epoch > f.Epoch {
		n.forgotten(c, b, f.Epoch)
		return
	}
	n.kept[b.Index].give = true
	b.Abandoned.Store(true)
}

func (n *keeperNode) forgotten(c *turn, b *msg.Batch, epoch uint32) {
	n.send(c, &hop.Frame{Kind: hop.Forgotten, Batch: uint8(b.Index), Epoch: epoch, ID: b.ID})
}

// send sends a frame to the leader.
func (n *keeperNode) send(c *turn, f *hop.Frame) {
	f.Sent = c.now()
	if err := n.side.Send(f); err != nil {
		n.failed(n.side, err)
	}
}

// free takes a batch back that no actor has.
func (n *keeperNode) free(c *turn, b *msg.Batch) {
	k := &n.kept[b.Index]
	b.Status = msg.Free
	if k.frame != nil {
		k.frame.Release()
		k.frame = nil
	}
	if k.give {
		k.give = false
		n.forgotten(c, b, k.floor)
	}
	if f := k.next; f != nil {
		k.next = nil
		n.step(c, f)
	}
}
