package actors

import (
	"errors"
	"fmt"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages/sample"
)

// sampleNode chooses the next token of every wanted row, on the last rank.
type sampleNode struct {
	stepEnds
}

func (n *sampleNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	giveMasks(b)
	lost, err := n.ended(c, b, func() error {
		if b.Stream == nil {
			return nil // the stages have waited
		}
		return b.Stream.Synchronize()
	})
	if err != nil {
		panic(err)
	}
	if lost == nil && !b.Abandoned.Load() && b.State.MasksLate() {
		lost = fmt.Errorf("a mask of allowed tokens did not reach the device: %w", device.ErrLate)
	}
	if lost != nil {
		c.log.Error().Uint64("batch", b.ID).Err(lost).Msg("a step is lost")
		c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: lost, Repeatable: true})
		return
	}
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
	c.send(c.routes.schedule, msg.NewReply(b))
}

// giveMasks gives the device the masks that were not known when the step was sent. They follow from tokens that this
// actor has taken by now.
func giveMasks(b *msg.Batch) {
	switch {
	case !b.State.Later():
	case b.Abandoned.Load():
		b.State.NoMasks()
	default:
		for i := range b.Rows {
			if d := &b.Step.Draws[i]; d.Later {
				b.State.GiveMask(i, b.Rows[i].Sampler.Mask(int(d.N)))
			}
		}
	}
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

// choose finds the token of a wanted row, or the likelihood of the given one, or why there is none.
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
		r.Result, r.Err = r.Sampler.Take(int(b.Step.Draws[i].N), id)
		return
	}
	r.Result, r.Err = r.Sampler.Next(b.State.LogitRow(i))
}

func readRaw(b *msg.Batch) error {
	if b.Raw.Read == nil {
		return nil
	}
	return b.Raw.Read(b.State)
}
