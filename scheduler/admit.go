package scheduler

// lookEvery is the number of batches after which a request that did not fit is looked up in the cache
// again, unless the free memory changes the answer before.
const lookEvery = 16

// fits reports whether a waiting sequence could start: a slot is free, and so are blocks for all
// its known tokens, beside what prompts in work still need and the reserve. The rest of its answer
// takes blocks as it goes.
func (c *Core) fits(s *seq) bool {
	if len(c.slots) == 0 || c.short != nil {
		return false
	}
	free := c.pool.Available() - c.promised - c.reserve()
	need := c.cfg.blocksFor(s.known)
	if need <= free {
		c.lacks = 0
		return true
	}
	if c.running() > 0 && c.batches < s.retryAt {
		return false
	}
	c.look(s)
	if need-c.sharing() <= free {
		c.lacks = 0
		return true
	}
	c.lacks = need - c.sharing() - free
	s.retryAt = c.batches + lookEvery
	return false
}

// reserve returns the number of blocks that admission leaves free, so that each running sequence can
// take one more block before one of them is preempted. It is 0 if no sequence runs.
func (c *Core) reserve() int {
	n := c.running()
	if n == 0 {
		return 0
	}
	return n + c.pool.Usable()/100
}

func (c *Core) running() int { return c.count[filling] + c.count[decoding] }

// next returns the waiting request that can start now, nil for none. It parks those at the head
// that wait for the blocks of others. No request of the same key overtakes one that does not fit,
// and requests of other keys do so only where it does not wait longer for that (overtaker);
// otherwise large requests would starve.
func (c *Core) next() *seq {
	for {
		s := c.head()
		if s != nil && !c.fits(s) {
			if s = c.overtaker(s); s != nil && !c.fits(s) {
				return nil
			}
		}
		if s == nil {
			return nil
		}
		c.look(s)
		runner, until := c.runnerFor(s)
		if runner == nil {
			return s
		}
		c.park(s, runner, until)
	}
}

// admit gives a slot and its cached blocks to a waiting request that can start.
func (c *Core) admit(f *flight, s *seq) {
	s.level, s.blocked, s.began = c.level(s), 0, c.batches+1
	c.queue.remove(s)
	top := len(c.slots) - 1
	s.slot = c.slots[top]
	c.slots = c.slots[:top]
	if s.req.Background {
		c.background++
	}
	c.setPhase(s, filling)
	c.catchUp(s.key)
	c.take(f, s)
	c.addRunning(s)
	kind := Resumed
	if !s.started {
		kind, s.started = Started, true
	}
	c.effects = append(c.effects, Effect{Kind: kind, ID: s.req.ID, Slot: s.slot, Cached: s.computed})
}
