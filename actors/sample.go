package actors

import (
	"errors"
	"fmt"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/stages/sample"
)

// sampleNode chooses the next token of every wanted row.
type sampleNode struct {
	heat    *heatMeter
	devices []*trace.Ring // of the device's orders of steps; none where it has none
	copies  copyLanes
	share   float64 // Options.LapShare
}

func (n *sampleNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if b.Stream != nil { // the step has been enqueued as a whole and now has to end
		late, err := end(b)
		if err != nil {
			panic(err)
		}
		if late != nil {
			c.log.Error().Uint64("batch", b.ID).Err(late).Msg("a step is lost: the host did not do its part")
			c.send(c.routes.schedule, &msg.Failed{Batch: b, Cause: late})
			return
		}
		if b.Kept {
			n.heat.observeRoutes(b.State.Total(), b.State.Routes)
		}
	}
	n.stepTimes(c, b)
	switch {
	case b.Raw != nil:
		b.Raw.Reply <- readRaw(b)
	case !b.Abandoned.Load():
		notFinite(b)
		for i := range b.Rows {
			r := &b.Rows[i]
			if choose(b, i, r); errors.Is(r.Err, sample.ErrNotFinite) {
				r.Err = fmt.Errorf("%w; the keys and values of all layers are finite, so it comes from the last layer behind them, the final norm or lm_head", r.Err)
			}
		}
	}
	c.send(c.routes.schedule, b)
}

// notFinite notes which requests of a batch have keys or values that are not finite.
func notFinite(b *msg.Batch) {
	b.Faults = b.Faults[:0]
	for i := range b.State.Spans {
		sp := &b.State.Spans[i]
		if err := b.State.Fault(sp); err != nil {
			b.Faults = append(b.Faults, msg.Fault{Seq: sp.Seq, Err: err})
		}
	}
}

// choose finds the token of a wanted row, or how likely the given one was, or why there is none.
func choose(b *msg.Batch, i int, r *msg.Row) {
	r.Err = nil
	for _, f := range b.Faults {
		if f.Seq == r.Seq {
			r.Err = f.Err
			return
		}
	}
	if r.Scored {
		r.Result, r.Err = sample.Score(b.State.LogitRow(i), r.Given, r.Alternatives)
		return
	}
	if id, ok := b.State.ChosenID(i); ok {
		r.Result, r.Err = r.Sampler.Take(id)
		return
	}
	r.Result, r.Err = r.Sampler.Next(b.State.LogitRow(i))
}

// end waits for a step. unanswered is why the host did not give the device what it asked
// for: the device is well, the step is lost.
func end(b *msg.Batch) (unanswered, err error) {
	if b.Abandoned.Load() {
		forget(b.Stream)
	}
	err = b.Stream.Synchronize()
	if b.Asked {
		b.Asked = false
		unanswered = b.Letters.End()
	}
	return unanswered, err
}

// forget has the device not take what is enqueued of a batch that was given up on its way for
// the step that it is a part of, and repeat it as that.
func forget(s device.Stream) {
	if r, ok := s.(device.Repeater); ok {
		r.Repeat(0)
	}
}

func readRaw(b *msg.Batch) error {
	if b.Raw.Read == nil {
		return nil
	}
	return b.Raw.Read(b.State)
}
