package actors

import (
	"slices"

	"krater/actors/msg"
	"krater/scheduler"
)

// suspend makes no batches from now on. Those in flight count no more.
func (n *scheduleNode) suspend(m *msg.Suspend) {
	n.resting, n.filled = true, nil
	for _, b := range n.batches {
		b.Abandoned.Store(true)
	}
	n.report(m)
}

// report lets the sender know when the stream actor has everything that was reported so far.
func (n *scheduleNode) report(m *msg.Suspend) {
	if d := n.delivery(); m.Delivered != nil {
		d.Drained = append(d.Drained, m.Delivered)
	}
}

// rest handles a message after suspend. Of replies and failures nothing is taken: what they are about is
// computed again.
func (n *scheduleNode) rest(m any, now int64) {
	if n.collected {
		return
	}
	switch m := m.(type) {
	case *msg.Submit:
		n.submit(m, now)
	case *msg.Cancel:
		n.core.Cancel(m.ID, m.Why)
	case *msg.Suspend:
		n.report(m)
	case *msg.Collect:
		n.collected = true
		for _, place := range n.core.Suspend() {
			r := n.live[place.Request.ID]
			m.List = append(m.List, &msg.Suspended{
				Submit: r.submit, Place: place, Answer: slices.Clone(r.tokens[place.Request.PromptLen:]), ScoredTo: r.scoredTo,
			})
		}
		n.report(&m.Suspend)
	}
}

// adopt takes over requests of another pipeline. One that cannot go on ends.
func (n *scheduleNode) adopt(m *msg.Adopt) {
	for _, s := range m.List {
		err := s.Fault
		if err == nil {
			err = n.core.Adopt(&s.Place, s.Answer)
		}
		id := s.Place.Request.ID
		if err != nil {
			n.log.Error().Uint64("request", id).Err(err).Msg("a request does not go on")
			n.item(msg.Delivery{Kind: msg.DeliverEnded, ID: id, Output: s.Submit.Output, Why: scheduler.Failed, Cause: err})
			continue
		}
		n.live[id] = &record{submit: s.Submit, tokens: append(slices.Clone(s.Submit.Prompt), s.Answer...), scoredTo: s.ScoredTo}
	}
}
