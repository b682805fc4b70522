package actors

import (
	"krater/actors/placement"
	"krater/scheduler/dispatch"
)

// exchanging returns the placement whose experts exchange memory with KV blocks; nil: none do. A batch's rows and the experts of the batch before it
// must be in one order, so there is one rank, and one micro-batch.
func exchanging(ranks []*rank, opt *Options) *placement.Placement {
	if len(ranks) == 1 && opt.Blueprint.MicroBatches == 1 && ranks[0].place != nil && ranks[0].place.Exchanges() {
		return ranks[0].place
	}
	return nil
}

// exchange moves memory between experts and KV blocks as the core demands, and reports whether there are more blocks than before.
// Requests do not notice: blocks that sequences hold stay where they are.
func (n *scheduleNode) exchange() (more bool) {
	x := n.shares
	if x == nil {
		return false
	}
	open, have := n.core.Open(), x.Blocks()
	want := x.BlocksFor(n.core.Demand())
	switch {
	case want > open && open < have: // it was about to give some back
		n.core.Resize(min(want, have))
		return true
	case want > have:
		if !n.quiet(nil, 0) || n.prompting() {
			return false
		}
		if err := x.Exchange(want); err != nil {
			n.log.Warn().Err(err).Msg("KV blocks get no memory of experts")
		}
		n.core.Resize(x.Blocks())
		return x.Blocks() > have
	case want < open, open < have:
		if least := x.BlocksFor(n.core.Resize(min(want, open))); least < have {
			if err := x.Exchange(least); err != nil {
				n.log.Warn().Err(err).Msg("experts get no memory of KV blocks")
			}
		}
	}
	return false
}

// prompting reports whether a batch in flight has borrowed slots.
func (n *scheduleNode) prompting() bool {
	return n.flying > 0 && n.shares.Lends() && n.phases[0] == dispatch.Prefill
}
