package scheduler

import "slices"

// A waiting request that needs blocks which a running sequence is computing does not
// compute them a second time: it is parked until they are there. It holds nothing, and
// waits only for a sequence that comes before it anyway, so it loses only its turn to later
// requests. When that sequence ends, fails, is preempted or has no more blocks for it, the
// request returns to its place in the queue.

// runnerFor returns the sequence that a waiting one, whose chain was just looked up, should wait
// for, and how many blocks that one must have; nil for none.
func (c *Core) runnerFor(s *seq) (*seq, int) {
	if !s.reuses {
		return nil, 0
	}
	for _, r := range c.filling.all() {
		if n := c.worthWaiting(r, s); n > 0 {
			return r, n
		}
	}
	for i := range c.flights {
		for _, r := range c.flights[i].seqs {
			if n := c.worthWaiting(r, s); n > 0 {
				return r, n
			}
		}
	}
	return nil, 0
}

// whole stands for all blocks of a prompt, also the last one that is not full.
const whole = int(^uint(0) >> 1)

// worthWaiting returns the number of blocks that r must have before s should start; 0 for none.
func (c *Core) worthWaiting(r, s *seq) int {
	if r.phase != filling || r.ended != None || r.yields || !r.reuses || r.root != s.root || c.sooner(s, r) {
		return 0
	}
	have := len(c.chain.pages)
	if have == (s.known-1)/c.cfg.BlockTokens && (c.chain.from >= 0 && c.chain.upto == s.known-1 || c.cfg.Snapshots > 0 || have*c.cfg.BlockTokens == s.known-1) {
		return 0 // the cache has everything it can have
	}
	if r.siblings != nil && r.siblings == s.siblings && r.generated() == 0 {
		return whole
	}
	if r.linked != c.chain.reach || r.link != c.chain.tip || !c.sameBlock(r, s, r.linked) {
		return 0
	}
	n := r.linked + 1
	for c.sameBlock(r, s, n) {
		n++
	}
	if c.cfg.Snapshots > 0 { // its state is saved where a batch of its prompt begins
		n = min(n, (r.known-1)/c.cfg.BlockTokens)
		if n <= r.linked {
			return 0
		}
	}
	return n
}

// sameBlock reports whether a block is full and of equal tokens in both, and of use to s.
func (c *Core) sameBlock(r, s *seq, block int) bool {
	end := (block + 1) * c.cfg.BlockTokens
	return end <= min(r.known, r.knownIDs()) && end < min(s.known, s.knownIDs()+1) && slices.Equal(c.tokens(r, block, &c.left), c.tokens(s, block, &c.right))
}

// reached reports whether others find what a sequence has computed, up to that many blocks, and the
// state there.
func (c *Core) reached(r *seq, until int) bool {
	if c.cfg.Snapshots > 0 && r.linked == until {
		return c.pool.Snapshot(r.blocks[until-1]) >= 0
	}
	return r.linked >= until
}

// wantedBorder returns the first position after a sequence's own, up to end, where a parked one
// continues from its state.
func (c *Core) wantedBorder(r *seq, end int) int {
	for _, s := range c.parked.all() {
		if s.runner == r && s.until <= end/c.cfg.BlockTokens && s.until*c.cfg.BlockTokens > r.computed {
			end = s.until * c.cfg.BlockTokens
		}
	}
	return end
}

// waitedFor reports whether a request is parked for a sequence.
func (c *Core) waitedFor(r *seq) bool {
	return slices.ContainsFunc(c.parked.all(), func(s *seq) bool { return s.runner == r })
}

// park makes a request at the head of the queue wait for another's blocks.
func (c *Core) park(s, runner *seq, until int) {
	c.queue.remove(s)
	s.runner, s.until = runner, until
	c.parked.append(s)
}

// unpark puts those that have nothing to wait for any more into the queue again.
func (c *Core) unpark(runner *seq) {
	if c.parked.len() == 0 {
		return
	}
	c.parked.take(func(s *seq) bool {
		if s.runner != runner || runner.phase == filling && runner.ended == None && !runner.empty && !c.reached(runner, s.until) {
			return false
		}
		s.runner = nil
		c.queue.add(s)
		return true
	})
}
