package scheduler

// A layer with a window (Config.Window) reads only the newest positions of a sequence. All such layers
// keep their rows in window blocks, which are fewer than blocks. A sequence takes a window block with
// each block, for the same positions, and gives it up as soon as no later row of the sequence reads
// it. The window block stays with the cached block until it is needed for another one.
//
// No sequence waits for a window block. Sequences hold at most WindowNeed of them. Sequences that
// share a block share its window block, so no more window blocks are held than blocks.

// windowStart returns the first block that layers with a window read for the row at a position. Later
// rows begin no earlier.
func (c *Config) windowStart(pos int) int { return max(0, pos+1-c.Window) / c.BlockTokens }

// WindowNeed returns the most window blocks that all sequences hold at once. Config.WindowBlocks must
// be at least that; further ones keep the windows of earlier requests.
func (c *Config) WindowNeed() int {
	if c.Window == 0 || c.BlockTokens < 1 { // check refuses the latter
		return 0
	}
	// A window of n positions lies in (n-1)/BlockTokens + 2 blocks at most. Three more: one for a row
	// ahead, one for a row whose batch is lost, one that is copied where a sequence begins.
	each := (c.Window-1)/c.BlockTokens + 5
	return min(c.Blocks, c.MaxSeqs*each+c.PrefillBatches*c.blocksFor(c.MaxBatchTokens))
}

// resumes returns the largest number of pages, up to n, after which a sequence can continue: the window
// of its next row is in window blocks, and there is a snapshot if the model needs one.
func (c *Core) resumes(n int) int {
	for n > 0 {
		if c.cfg.Snapshots > 0 && c.pool.Snapshot(c.chain.pages[n-1]) < 0 {
			n--
			continue
		}
		missing := n - 1
		first := n
		if c.cfg.Window > 0 {
			first = c.cfg.windowStart(n * c.cfg.BlockTokens)
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

// pinWindows gives a sequence the window blocks of the chain that its next row reads. Earlier entries
// of the table are never read. They name a block that the sequence holds, so that no entry names
// another sequence's.
func (c *Core) pinWindows(s *seq) {
	if c.cfg.Window == 0 {
		return
	}
	pages := c.chain.pages
	s.windows = s.windows[:0]
	s.passed = min(len(pages), c.cfg.windowStart(len(pages)*c.cfg.BlockTokens))
	for range s.passed {
		own := int32(0)
		if s.passed < len(pages) {
			own = c.pool.Window(pages[s.passed])
		}
		s.windows = append(s.windows, own)
	}
	for _, page := range pages[s.passed:] {
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

// passWindows gives up the window blocks that neither the next row of a sequence nor a later one reads.
func (c *Core) passWindows(s *seq) {
	if c.cfg.Window == 0 {
		return
	}
	for end := min(c.cfg.windowStart(s.computed), len(s.windows)); s.passed < end; s.passed++ {
		c.pool.UnpinWindow(s.windows[s.passed], c.worthKeeping(s, s.passed))
	}
}

// worthKeeping reports whether a block is in the window of a place where another sequence is likely to
// continue: the end of the prompt, or the end of the part that the cache had when the sequence
// began, because several prompts may have that part in common.
func (c *Core) worthKeeping(s *seq, block int) bool {
	for _, end := range [...]int{s.req.PromptLen / c.cfg.BlockTokens, s.reached} {
		if block < end && block >= c.cfg.windowStart(end*c.cfg.BlockTokens) {
			return true
		}
	}
	return false
}

// dropWindows gives up all window blocks of a sequence.
func (c *Core) dropWindows(s *seq) {
	for i := len(s.windows) - 1; i >= s.passed; i-- {
		c.pool.UnpinWindow(s.windows[i], true)
	}
	s.windows, s.passed = s.windows[:0], 0
}

// windowTable returns the first n entries of a sequence's table of window blocks, nil if the model has
// no layers with a window.
func (c *Core) windowTable(s *seq, n int) []int32 {
	if c.cfg.Window == 0 {
		return nil
	}
	return s.windows[:n:n]
}
