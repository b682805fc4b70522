package scheduler

// Why no request is stuck:
//
// Running sequences are in a total order, outranks. The first in it is the earliest of the keys'
// own first ones, and stays first until it ends or an earlier one starts. Let s be the first.
// When s lacks a block, the blocks of the last in the order are taken (reclaim): at once if that
// one is idle, else when its batches are back, and every batch comes back, or is gone after it
// was lost. Until s has its block, no sequence that it outranks gets blocks that come free (room),
// and no request is admitted (fits). So after finitely many batches s has its block, at the latest
// when it is the only one left: then all that it does not hold is free, and Add refused whatever
// needs more than the whole pool. Where prompts of other keys go before its own, their rows are
// charged to their keys until they no longer do. So s has a row in a batch again and again and is
// done after finitely many, and then another is the first. Only one of its own key with a
// higher level, or an earlier one that was preempted, can be put before it; waiting requests
// gain levels (Config.Aging), so that cannot go on for ever.
//
// Where no sequence runs, the head of the queue is admitted: it needs at most all blocks, no
// reserve is kept, and no request is parked, because parked ones wait for one that runs. So with
// nothing in flight and a live request Next always makes a batch.

// room returns the number of blocks that a sequence may take: none for which an earlier one waits.
func (c *Core) room(s *seq) int {
	n := c.pool.Available()
	if c.short != nil && c.short != s && outranks(c.short, s) {
		n -= c.shortNeed
	}
	return n
}

// covered reports whether a sequence holds the blocks up to a position.
func (c *Core) covered(s *seq, end int) bool { return end <= len(s.blocks)*c.cfg.BlockTokens }

// reach gives a sequence the blocks up to a position, within its room. It takes them from other
// sequences if it must.
func (c *Core) reach(f *flight, s *seq, end int) bool {
	n := c.cfg.blocksFor(end) - len(s.blocks)
	if n > 0 && c.room(s) < n && !c.reclaim(s, n) {
		return false
	}
	c.extend(f, s, n)
	return true
}

// extend gives a sequence n blocks, which must be available.
func (c *Core) extend(f *flight, s *seq, n int) {
	for range n {
		block := c.alloc(f)
		s.blocks = append(s.blocks, block)
		c.addWindow(s, block)
	}
	c.promise(s)
}

// reclaim makes room for n blocks by preempting sequences that an idle sequence outranks, the last
// in the order first. If that one is in flight, or others that have ended are, the sequence has to
// wait. If the sequence is itself the last, it is preempted.
func (c *Core) reclaim(s *seq, n int) bool {
	for c.room(s) < n {
		v, coming := c.last(s)
		switch {
		case v == nil && coming, v == nil && c.short != nil && c.short != s && outranks(c.short, s):
			c.claim(s, n)
			return false
		case v == nil:
			c.preempt(s)
			return false
		case v.inFlight > 0:
			v.yields = true
			c.claim(s, n)
			return false
		}
		c.preempt(v)
	}
	if c.short == s {
		c.short = nil
	}
	return true
}

// claim reserves what comes free for a sequence.
func (c *Core) claim(s *seq, n int) {
	if c.short == nil || c.short == s || outranks(s, c.short) {
		c.short, c.shortNeed = s, n
	}
}

// last returns the running sequence that all others outrank, s included, or nil; and whether
// sequences that have ended, or will be preempted, are in flight.
func (c *Core) last(s *seq) (last *seq, coming bool) {
	see := func(v *seq) {
		if v.ended != None || v.yields {
			coming = true
		}
		if v.ended == None && outranks(s, v) && (last == nil || outranks(last, v)) {
			last = v
		}
	}
	for _, v := range c.filling.all() {
		see(v)
	}
	for _, v := range c.decoding.all() {
		see(v)
	}
	for i := range c.flights {
		for _, v := range c.flights[i].seqs {
			see(v)
		}
	}
	return last, coming
}

// preempt takes slot and blocks of an idle sequence, which goes back to the queue.
func (c *Core) preempt(s *seq) {
	if s.phase == filling {
		c.filling.remove(s)
	} else {
		c.decoding.remove(s)
	}
	c.requeue(s)
}

// requeue preempts a sequence that is in no list and no batch.
func (c *Core) requeue(s *seq) {
	c.stats.Preemptions++
	if s.req.Background {
		c.background--
	}
	c.leaveMicro(s)
	c.removeRunning(s)
	c.setPhase(s, waiting)
	c.drop(s)
	c.slots = append(c.slots, s.slot)
	c.emit(Preempted, s, None, nil)
	s.slot, s.resumed, s.yields, s.overShare = -1, true, false, false
	c.enqueue(s)
}

// drop releases a sequence's blocks, so that it starts again with what the cache has.
func (c *Core) drop(s *seq) {
	c.dropWindows(s)
	c.pool.Free(s.blocks)
	s.blocks = s.blocks[:0]
	s.flying, s.computed, s.linked, s.link, s.stateAt, s.borrowed, s.empty = 0, 0, 0, s.root, 0, 0, true
	c.endWaits(s)
}

// endWaits ends what others wait for from a sequence, and what it claims, when its plans change.
func (c *Core) endWaits(s *seq) {
	if c.short == s {
		c.short = nil
	}
	c.promise(s)
	c.unpark(s)
}

// promise counts the blocks that the known tokens of a prompt in work still need.
func (c *Core) promise(s *seq) {
	n := 0
	if s.phase == filling && s.ended == None {
		n = max(0, c.cfg.blocksFor(s.known)-len(s.blocks))
	}
	c.promised += n - s.promised
	s.promised = n
}

// lastBackground returns the last in the order of those that run in the background.
func (c *Core) lastBackground() *seq {
	c.lowest.req.Background = false
	if v, _ := c.last(&c.lowest); v != nil && v.req.Background {
		return v
	}
	return nil
}
