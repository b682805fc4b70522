package actors

import (
	"slices"

	"krater/actors/msg"
	"krater/kernels/device"
)

// draws makes the device choose the batch's tokens, if it can choose all of them.
func (n *scheduleNode) draws(b *msg.Batch) {
	step := b.Step
	b.Drawn = b.Last().State.Choose()
	ahead := 0
	if b.After != 0 {
		ahead = 1
	}
	for i := 0; b.Drawn && i < len(b.Rows); i++ {
		var d device.Draw
		if d, b.Drawn = n.draw(&b.Rows[i], ahead); b.Drawn {
			step.Draws = append(step.Draws, d)
		}
	}
	if !b.Drawn {
		step.Draws = step.Draws[:0]
		return
	}
	for i := range step.Draws {
		if step.Draws[i].Change != nil { // the device adds the step's own token
			r := n.live[b.Rows[i].Seq]
			r.stored = len(r.tokens) + ahead
		}
	}
}

// draw is how a row's token is chosen after the known tokens and that many more.
func (n *scheduleNode) draw(row *msg.Row, ahead int) (device.Draw, bool) {
	if row.Scored {
		return device.Draw{}, false
	}
	r := n.live[row.Seq]
	d, ok := row.Sampler.DrawAt(len(r.tokens) - r.submit.Request.PromptLen + ahead)
	if d.Change == nil {
		return d, ok
	}
	d.Slot, d.Stored = r.slot, r.stored
	if d.Change.Penalises() {
		d.Tokens = r.tokens[:len(r.tokens)-1+ahead]
	}
	return d, ok
}

// dropHistories marks the histories of a lost batch's sequences to be copied again: the device may
// not have added the tokens of the step.
func (n *scheduleNode) dropHistories(b *msg.Batch) {
	for i := range b.Spans {
		if r := n.slots[b.Spans[i].Slot]; r != nil {
			r.stored = -1
		}
	}
}

// hold tells the core which batches in flight must have none ahead of them: those whose tokens the
// device cannot choose, there or in the next step, and those that the next step could overtake. Where
// experts are placed, the copies between layers submit what was enqueued before them, so the next step
// could read a token before this step has enqueued its choice: it waits until this one is submitted.
func (n *scheduleNode) hold() {
	if !n.ahead {
		return
	}
	for _, b := range n.batches {
		if b.Status == msg.InFlight && b.Raw == nil {
			placed := n.placed && !n.ranks[0].place.AsResident(b.Step.Total())
			n.core.Hold(b.ID, placed && !b.Submitted.Load() || !n.canRunAhead(b) || overtaken(n.ranks, b.Step.Total()) || !n.hasCredit(b.Queue))
		}
	}
}

// hasCredit reports whether a credit of a queue is left: only the steps of one queue run in order.
func (n *scheduleNode) hasCredit(queue int) bool {
	return slices.ContainsFunc(n.credits, func(b *msg.Batch) bool { return b.Queue == queue })
}

// canRunAhead reports whether the device chooses all tokens of a batch, and can choose those
// after them.
func (n *scheduleNode) canRunAhead(b *msg.Batch) bool {
	if !b.Drawn {
		return false
	}
	for i := range b.Rows {
		row := &b.Rows[i]
		if r := n.live[row.Seq]; r == nil || r.ended {
			continue
		}
		if _, ok := n.draw(row, 1); !ok {
			return false
		}
	}
	return true
}
