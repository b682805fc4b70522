package actors

import (
	"slices"

	"krater/actors/msg"
	"krater/kernels/device"
)

// draws has the device choose the batch's tokens, if it can choose all of them.
func (n *scheduleNode) draws(f *flight) {
	step := f.batch.Step
	f.drawn = f.batch.Last().State.Choose()
	ahead := 0
	if f.core.After != 0 {
		ahead = 1
	}
	for i := 0; f.drawn && i < len(f.batch.Rows); i++ {
		var d device.Draw
		if d, f.drawn = n.draw(&f.batch.Rows[i], ahead); f.drawn {
			step.Draws = append(step.Draws, d)
		}
	}
	if !f.drawn {
		step.Draws = step.Draws[:0]
		return
	}
	for i := range step.Draws {
		if step.Draws[i].Change != nil { // the device adds the step's own token
			r := n.live[f.batch.Rows[i].Seq]
			r.stored = len(r.tokens) + ahead
		}
	}
}

// draw is how a row's token is chosen after those that are known and so many more.
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

// unstore has the histories of a lost batch's sequences copied again: the device may not have
// added the tokens of the step.
func (n *scheduleNode) unstore(f *flight) {
	for i := range f.core.Spans {
		if r := n.slots[f.core.Spans[i].Slot]; r != nil {
			r.stored = -1
		}
	}
}

// hold tells the core which batches in flight none may be ahead of: one whose tokens the device
// cannot choose, there or in the next step, and one that the next step could overtake.
func (n *scheduleNode) hold() {
	if !n.ahead {
		return
	}
	for _, f := range n.flight {
		if f.where == away && f.core.ID != 0 {
			n.core.Hold(f.core.ID, !n.chains(f) || overtaken(n.ranks, f.batch.Step.Total()) || !n.spare(f.batch.Queue))
		}
	}
}

// spare reports whether a credit of a queue is left: only the steps of one queue run in order.
func (n *scheduleNode) spare(queue int) bool {
	return slices.ContainsFunc(n.free, func(f *flight) bool { return f.batch.Queue == queue })
}

// chains reports whether the device chooses all tokens of a batch, and can choose those
// after them.
func (n *scheduleNode) chains(f *flight) bool {
	if !f.drawn {
		return false
	}
	for i := range f.batch.Rows {
		row := &f.batch.Rows[i]
		if r := n.live[row.Seq]; r == nil || r.ended {
			continue
		}
		if _, ok := n.draw(row, 1); !ok {
			return false
		}
	}
	return true
}
