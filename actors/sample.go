package actors

import (
	"krater/actors/msg"
)

// sampleNode chooses the next token of every wanted row.
type sampleNode struct{}

func (sampleNode) receive(c *turn, m any) {
	b := m.(*msg.Batch)
	if b.Stream != nil { // the step has been enqueued as a whole and now has to end
		if err := b.Stream.Synchronize(); err != nil {
			panic(err)
		}
	}
	switch {
	case b.Raw != nil:
		b.Raw.Reply <- readRaw(b)
	case !b.Abandoned.Load():
		for i := range b.Rows {
			r := &b.Rows[i]
			if id, ok := b.State.ChosenID(i); ok {
				r.Result, r.Err = r.Sampler.Take(id)
				continue
			}
			r.Result, r.Err = r.Sampler.Next(b.State.LogitRow(i))
		}
	}
	c.send(c.routes.schedule, b)
}

func readRaw(b *msg.Batch) error {
	if b.Raw.Read == nil {
		return nil
	}
	return b.Raw.Read(b.State)
}
