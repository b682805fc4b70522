package scheduler

// Layers with a window (Config.Window) read only the newest positions of a sequence, so they keep
// fewer blocks. Each block of a sequence has a window block beside it while a row that may still be
// computed sees its positions. When none does, the window block stays with the cached block for
// as long as there are others to hand out.
//
// No sequence ever waits for a window block: WindowNeed bounds those that all sequences hold, and
// no two sequences hold different ones for the same block (kvblocks.TakeWindow), so there are
// never more than blocks that are held.

// firstSeen is the first block of which the row at a position, or a later one, sees anything in the
// layers with a window.
func (c *Config) firstSeen(pos int) int { return max(0, pos+1-c.Window) / c.BlockTokens }

// WindowNeed is how many window blocks the sequences of a core hold at most. Config.WindowBlocks
// must be as many; more are a cache.
func (c *Config) WindowNeed() int {
	if c.Window == 0 || c.BlockTokens < 1 { // check refuses the latter
		return 0
	}
	// What a row sees begins and ends within a block. A row ahead, and one whose batch is lost, may
	// take one more, and one is copied where a sequence begins.
	each := (c.Window-1)/c.BlockTokens + 5
	return min(c.Blocks, c.MaxSeqs*each+c.PrefillBatches*c.blocksFor(c.MaxBatchTokens))
}

// resumes shortens a number of pages of the chain to one after which a sequence can go on: the
// layers with a window have what the next row sees, and there is a snapshot where one is needed.
func (c *Core) resumes(n int) int {
	for n > 0 {
		if c.cfg.Snapshots > 0 && c.pool.Snapshot(c.chain.pages[n-1]) < 0 {
			n--
			continue
		}
		missing := n - 1
		first := n
		if c.cfg.Window > 0 {
			first = c.cfg.firstSeen(n * c.cfg.BlockTokens)
		}
		for missing >= first && c.pool.Window(c.chain.pages[missing]) >= 0 {
			missing--
		}
		if missing < first {
			return n
		}
		n = missing
	}
	return 0
}

// pinWindows gives a sequence the window blocks of the chain that its next row sees. Entries of the
// table before those are never read; they name a block that is the sequence's own.
func (c *Core) pinWindows(s *seq) {
	if c.cfg.Window == 0 {
		return
	}
	pages := c.chain.pages
	s.windows = s.windows[:0]
	s.seen = min(len(pages), c.cfg.firstSeen(len(pages)*c.cfg.BlockTokens))
	for range s.seen {
		own := int32(0)
		if s.seen < len(pages) {
			own = c.pool.Window(pages[s.seen])
		}
		s.windows = append(s.windows, own)
	}
	for _, page := range pages[s.seen:] {
		w := c.pool.Window(page)
		c.pool.PinWindow(w)
		s.windows = append(s.windows, w)
	}
}

// addWindow gives a sequence the window block of its newest block.
func (c *Core) addWindow(s *seq, block int32) {
	if c.cfg.Window > 0 {
		s.windows = append(s.windows, c.pool.TakeWindow(block))
	}
}

// hasWindow reports whether a page can be copied for the layers with a window too.
func (c *Core) hasWindow(page int32) bool { return c.cfg.Window == 0 || c.pool.Window(page) >= 0 }

// copyWindow has a batch copy the window block of a block to one for the sequence's newest block.
func (c *Core) copyWindow(f *flight, s *seq, from, to int32) {
	if c.cfg.Window == 0 {
		return
	}
	w := c.pool.Window(from)
	c.pool.PinWindow(w)
	c.addWindow(s, to)
	c.addMove(f, Move{Kind: CopyWindow, From: w, To: s.windows[len(s.windows)-1]})
}

// passWindows gives up the window blocks that the next row of a sequence does not see.
func (c *Core) passWindows(s *seq) {
	if c.cfg.Window == 0 {
		return
	}
	for end := min(c.cfg.firstSeen(s.computed), len(s.windows)); s.seen < end; s.seen++ {
		c.pool.UnpinWindow(s.windows[s.seen], c.worthKeeping(s, s.seen))
	}
}

// worthKeeping reports whether another sequence is likely to go on from where a block is seen: at
// the end of the prompt, or where the prompt left what the cache had, which may be the end of what
// several have in common.
func (c *Core) worthKeeping(s *seq, block int) bool {
	for _, end := range [...]int{s.req.PromptLen / c.cfg.BlockTokens, s.reached} {
		if block < end && block >= c.cfg.firstSeen(end*c.cfg.BlockTokens) {
			return true
		}
	}
	return false
}

// dropWindows gives up all window blocks of a sequence.
func (c *Core) dropWindows(s *seq) {
	for i := len(s.windows) - 1; i >= s.seen; i-- {
		c.pool.UnpinWindow(s.windows[i], true)
	}
	s.windows, s.seen = s.windows[:0], 0
}

// windowTable is the first n entries of a sequence's table of window blocks; nil where there are
// none.
func (c *Core) windowTable(s *seq, n int) []int32 {
	if c.cfg.Window == 0 {
		return nil
	}
	return s.windows[:n:n]
}
