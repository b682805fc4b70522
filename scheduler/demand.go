package scheduler

// Memory of KV blocks may be of use to something else: the driver asks for the Demand and moves memory with Resize.

// noteUse notes how many blocks a batch needs.
func (c *Core) noteUse() {
	if c.batches%c.cfg.calm() == 0 {
		c.high = [2]int{0, c.high[0]}
	}
	c.high[0] = max(c.high[0], c.pool.Used()+c.promised+c.reserve())
}

// Demand is how many blocks there should be: more than now where the request whose turn it is or those that run lack some, fewer where fewer
// were in use for a while. Blocks that only the prefix cache has are not in use.
func (c *Core) Demand() int {
	open := c.pool.Usable()
	more := c.promised + c.reserve() - c.pool.Available()
	if c.lacks > 0 && len(c.slots) > 0 && c.head() != nil {
		more = max(more, c.lacks)
	}
	if more > 0 && len(c.byID) > 0 {
		return min(c.cfg.Blocks, open+more)
	}
	if use := max(c.high[0], c.high[1]); c.batches >= 2*c.cfg.calm() && use+use/8 < open {
		return use + use/16
	}
	return open
}

// Open is how many blocks may be used.
func (c *Core) Open() int { return c.pool.Usable() }

// Resize has blocks from n on, or from 1 on, not be used any more, and those below n be used again. Blocks that sequences hold stay theirs until
// they end. Resize returns the number of blocks whose memory belongs to the core now: the driver may use that of the others until it
// calls Resize with a larger number.
func (c *Core) Resize(n int) int {
	if n > c.pool.Usable() {
		c.lacks = 0
		if s := c.head(); s != nil {
			s.retryAt = 0 // it may fit
		}
	}
	return c.pool.Resize(max(1, n))
}
