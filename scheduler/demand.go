package scheduler

// Memory of KV blocks may be of use to something else: the driver asks for the Demand and moves memory with Resize.

// noteUse records the number of blocks that a batch needs.
func (c *Core) noteUse() {
	if c.batches%c.cfg.calm() == 0 {
		c.high = [2]int{0, c.high[0]}
	}
	c.high[0] = max(c.high[0], c.pool.Used()+c.promised+c.reserve())
}

// Demand returns the number of blocks that the core should have. It is larger than Open if the running
// requests, or the request whose turn it is, lack blocks, and smaller if fewer blocks were in use for
// Config.Calm batches. Blocks that only the prefix cache holds do not count as in use.
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

// Open returns the number of blocks that may be used.
func (c *Core) Open() int { return c.pool.Usable() }

// Resize changes the number of blocks that may be used to n, at least 1: the blocks below n. Sequences
// keep blocks beyond n until they end. Resize returns the number of blocks whose memory belongs to the
// core now. The driver may use the memory of the others until it calls Resize with a larger number.
func (c *Core) Resize(n int) int {
	if n > c.pool.Usable() {
		c.lacks = 0
		if s := c.head(); s != nil {
			s.retryAt = 0 // it may fit
		}
	}
	return c.pool.Resize(max(1, n))
}
