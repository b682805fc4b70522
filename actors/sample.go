package actors

import (
	"errors"
	"fmt"

	"krater/actors/msg"
	"krater/stages/head"
	"krater/stages/sample"
)

// sampleNode chooses the next token of every wanted row, on the last rank.
type sampleNode struct {
	stepEnds
	stage *head.Stage
}

func (n *sampleNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	n.chooseLater(c, b)
	lost, err := n.ended(c, b, func() error {
		if b.Stream == nil {
			return nil // the stages have waited
		}
		return b.Stream.Synchronize()
	})
	if err != nil {
		panic(err)
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

// chooseLater enqueues the choice of tokens of a step that was sent before all of its masks were known. The
// masks follow from tokens that this actor has taken by now. The next step may be made then.
func (n *sampleNode) chooseLater(c *turn, b *msg.Batch) {
	if !b.State.Later() || b.Abandoned.Load() {
		return
	}
	for i := range b.Rows {
		if d := &b.Step.Draws[i]; d.Later {
			d.Mask = b.Rows[i].Sampler.Mask(int(d.N))
		}
	}
	n.stage.Choose(b.Stream, b.State)
	b.Stream.Submit()
	b.Submitted.Store(true)
	c.send(c.routes.schedule, &msg.Tick{})
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
