package scheduler

import "slices"

// With Config.Follow a prompt has several chunks in flight, each in a batch of another micro-batch, so that several ranks
// work on one prompt. What a chunk reads of those before it is written layer by layer before it reads it.

// trailing returns a prompt in flight whose next chunk may follow, of which the blocks for a row are there; nil for none. It is not
// counted among those that wait for their turn, so prompts that are idle come first.
func (c *Core) trailing() (best *seq) {
	if !c.cfg.Follow {
		return nil
	}
	for i := range c.flights {
		f := &c.flights[i]
		for _, s := range f.seqs {
			if f.ID != 0 && !f.lost && s.round != c.rounds && s.trails() && (c.covered(s, s.next()+1) || c.room(s) > 0) && (best == nil || c.sooner(s, best)) {
				best = s
			}
		}
	}
	if best != nil {
		best.round = c.rounds
	}
	return best
}

// trails reports whether the rows of a sequence after those in flight are rows of its prompt that may be computed. What was computed
// before, and a prompt that is scored, waits for its batches.
func (s *seq) trails() bool {
	return s.phase == filling && s.ended == None && !s.recompute && !s.yields && !s.req.Scored && !s.req.Background && s.classIDs == nil &&
		s.known == s.req.PromptLen && s.next() < s.known
}

// newestWith returns the id of the newest batch in flight that has a sequence.
func (c *Core) newestWith(s *seq) (id uint64) {
	for i := range c.flights {
		if f := &c.flights[i]; f.ID > id && slices.Contains(f.seqs, s) {
			id = f.ID
		}
	}
	return id
}

// leads reports whether no batch in flight that was made before f has a sequence of f.
func (c *Core) leads(f *flight, s *seq) bool {
	if s.inFlight < 2 {
		return true
	}
	return !slices.ContainsFunc(c.flights, func(o flight) bool { return o.ID != 0 && o.ID < f.ID && slices.Contains(o.seqs, s) })
}

// loseFollowers marks the batches as lost that have rows after those of lost ones. Their sequences are computed again, or fail with the
// cause where they were computed again too often.
func (c *Core) loseFollowers(cause error) {
	for again := true; again; {
		again = false
		for i := range c.flights {
			f := &c.flights[i]
			if f.Follows == 0 || f.lost || !slices.ContainsFunc(f.seqs, func(s *seq) bool { return s.recompute && !c.leads(f, s) }) {
				continue
			}
			again = true
			c.lose(f)
			c.effects = append(c.effects, Effect{Kind: Voided, Batch: f.ID, Slot: -1})
			c.again(f, cause, true)
		}
	}
}
