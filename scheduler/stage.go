package scheduler

// Loading what a request has in host memory may take long, and the streams wait for the batch
// that does it. So while there are streams, loads are charged to the budget of prompts
// (Config.LoadRate). A request that needs more loads than a batch has room for stays at the
// head of the queue, while batches with other rows load its blocks, some in each. Those are in
// the cache then, as the ones used last, and the request starts once the rest fits into one
// batch.

// loadable returns the number of blocks that a batch may load if it has room for the given number of rows of prompts.
func (c *Core) loadable(f *flight, room int) int {
	if c.cfg.LoadRate == 0 || c.count[decoding] == 0 {
		return c.cfg.RAMBlocks
	}
	n := (room - 1) * c.cfg.LoadRate / c.cfg.BlockTokens
	if f.loads == 0 {
		n = max(n, 1)
	}
	return n
}

// charge returns the room for rows that is left beside that many more loads.
func (c *Core) charge(room, loads int) int {
	if c.cfg.LoadRate == 0 || c.count[decoding] == 0 || loads == 0 {
		return room
	}
	return max(1, room-share(loads*c.cfg.BlockTokens, c.cfg.LoadRate))
}

// onHost counts the pages of the chain that are in host memory, and reports whether some are being
// loaded.
func (c *Core) onHost() (n int, coming bool) {
	for _, page := range c.chain.pages {
		if place := c.pool.Place(page); place >= 0 {
			n++
			coming = coming || c.pool.Pinned(place)
		}
	}
	return n, coming
}

// stage ensures that a request that could start, whose chain was just looked up, needs no more
// loads than a batch has room for, and reports whether that is so now.
func (c *Core) stage(f *flight, s *seq, room int) bool {
	n, coming := c.onHost()
	most := c.loadable(f, room)
	switch {
	case n <= most && (n == 0 || !coming || c.cfg.LoadRate == 0):
		return true
	case coming || f.Rows == 0 || most == 0:
		return false // in a later batch, or in one of another micro-batch
	case s.preloaded > 2*len(c.chain.pages): // others evict what was loaded
		c.limitLoads(s, most)
		return true
	}
	c.load(f, s, most)
	return false
}

// limitLoads shortens the chain so that it needs at most that many loads; the rest is computed.
func (c *Core) limitLoads(s *seq, most int) {
	for i, page := range c.chain.pages {
		if c.pool.Place(page) < 0 {
			continue
		}
		if most--; most < 0 {
			c.trim(s, i)
			return
		}
	}
}

// load makes a batch load the first n pages of the chain that are in host memory, for no sequence
// yet. There is room for all of the chain.
func (c *Core) load(f *flight, s *seq, n int) {
	held := c.held[:0]
	for _, page := range c.chain.pages { // none of them may be evicted
		if place := c.pool.Place(page); place >= 0 {
			c.pool.Pin(place)
		} else {
			c.pool.Hold(page)
			held = append(held, page)
		}
	}
	for _, page := range c.chain.pages {
		place := c.pool.Place(page)
		switch {
		case place < 0:
		case n == 0:
			c.pool.Unpin(place)
		default:
			n--
			block := c.alloc(f)
			c.addLoad(f, place, block)
			f.preloaded = append(f.preloaded, block)
			s.preloaded++
		}
	}
	c.pool.Free(held)
	c.held = held
}

// addLoad adds a load to a batch.
func (c *Core) addLoad(f *flight, place, block int32) {
	f.loads++
	c.addMove(f, Move{Kind: Load, From: place, To: block})
}
