package scheduler

import "slices"

// chain is the part of a sequence that is in the cache: consecutive pages from the first block on. It
// never contains the last known token, because that token's logits are needed.
type chain struct {
	pages []int32 // blocks, or places in host memory
	link  uint64  // identity of the last, or the root
	reach int     // pages that the cache has, also those after which no sequence can continue
	tip   uint64  // identity of the last of them, or the root
	from  int32   // the block to copy the next one from; -1: none
	upto  int     // positions that has, from the first on
}

// tokens returns the ids of a block's tokens, which must all be known. buf is for those that are in
// two arrays.
func (c *Core) tokens(s *seq, block int, buf *[]int32) []int32 {
	return c.tokensUpTo(s, block, (block+1)*c.cfg.BlockTokens, buf)
}

// tokensUpTo is tokens for the part of a block before position hi.
func (c *Core) tokensUpTo(s *seq, block, hi int, buf *[]int32) []int32 {
	lo, prompt := block*c.cfg.BlockTokens, s.req.PromptLen
	switch {
	case hi <= prompt:
		return s.prompt()[lo:hi]
	case lo >= prompt:
		return s.answer[lo-prompt : hi-prompt]
	}
	*buf = append(append((*buf)[:0], s.prompt()[lo:]...), s.answer[:hi-prompt]...)
	return *buf
}

// prompt returns the ids by which the cache knows the prompt.
func (s *seq) prompt() []int32 {
	if s.classIDs != nil {
		return s.classIDs
	}
	return s.req.Prompt
}

// find returns the page with a block's tokens. With ReuseAnswers a request that has not started
// takes either numerics class; afterwards only the classes that it began with.
func (c *Core) find(s *seq, block int) int32 {
	tokens := c.tokens(s, block, &c.left)
	page := c.pool.Find(c.chain.link, tokens)
	if page < 0 && c.cfg.ReuseAnswers && !s.started {
		page = c.pool.FindAlike(c.chain.link, tokens)
	}
	return page
}

// noteClasses notes the numerics classes in which a page of the chain has the tokens of a prompt,
// from one position up to another.
func (c *Core) noteClasses(s *seq, page int32, from, upto int) {
	if !c.cfg.ReuseAnswers || s.started || c.pool.Serial(page) == 0 {
		return
	}
	for i, id := range c.pool.Tokens(page)[:min(upto-from, c.cfg.BlockTokens)] {
		if id < 0 {
			if s.classIDs == nil {
				s.classIDs = slices.Clone(s.req.Prompt)
			}
			s.classIDs[from+i] = id
		}
	}
}

// decodeClass reports whether the row of a position has the numerics class of generated tokens.
func (s *seq) decodeClass(pos int) bool {
	return pos >= s.req.PromptLen || s.classIDs != nil && s.classIDs[pos] < 0
}

// sameClass shortens the span from a sequence's next row to end so that all its rows have one
// numerics class.
func (c *Core) sameClass(s *seq, end int) int {
	form := s.decodeClass(s.computed)
	switch {
	case !c.cfg.Classes:
		return end
	case form && c.cfg.RecomputeSingly:
		return min(end, s.computed+1)
	case form && s.computed >= s.req.PromptLen:
		return end
	}
	end = min(end, s.req.PromptLen)
	for n := s.computed; s.classIDs != nil && n < end; n++ {
		if s.decodeClass(n) != form {
			return n
		}
	}
	return end
}

// look fills in the chain of a sequence that holds no blocks. The chain ends at the last block after
// which a sequence can continue (resumes).
func (c *Core) look(s *seq) {
	c.chain = chain{pages: c.chain.pages[:0], link: s.root, tip: s.root, from: -1}
	if !s.reuses {
		return
	}
	b := c.cfg.BlockTokens
	for n := 0; (n+1)*b <= min(s.known-1, s.knownIDs()); n++ {
		page := c.find(s, n)
		if page < 0 {
			break
		}
		c.chain.pages, c.chain.link = append(c.chain.pages, page), c.pool.Serial(page)
	}
	c.chain.reach, c.chain.tip = len(c.chain.pages), c.chain.link
	if c.cfg.Snapshots > 0 {
		c.lookState(s)
		return
	}
	c.trim(s, len(c.chain.pages))
	if n := len(c.chain.pages); n == (s.known-1)/b {
		c.lookTail(s, n)
	}
	if len(c.chain.pages) == c.chain.reach && c.chain.from < 0 {
		c.lookPart(s, c.chain.reach, c.chain.link)
	}
}

// lookTail finds a block with the sequence's last tokens, which it will write to and so has to
// copy: a cached one, or one of its siblings.
func (c *Core) lookTail(s *seq, n int) {
	b := c.cfg.BlockTokens
	if (n+1)*b <= s.knownIDs() {
		if page := c.find(s, n); page >= 0 && c.pool.Place(page) < 0 && c.hasWindow(page) {
			c.chain.from, c.chain.upto = page, s.known-1
		}
	} else if block, upto, ok := s.siblings.tail(c, s); ok && c.hasWindow(block) {
		c.chain.from, c.chain.upto = block, min(upto, s.known-1)
	}
	if c.chain.upto <= n*b {
		c.chain.from = -1
	}
}

// lookState ends the chain at the last place where a state is kept: at the end of a page or of a part.
func (c *Core) lookState(s *seq) {
	n := c.resumes(len(c.chain.pages))
	for at := len(c.chain.pages); at >= n; at-- {
		link := s.root
		if at > 0 {
			link = c.pool.Serial(c.chain.pages[at-1])
		}
		if c.lookPart(s, at, link) {
			return
		}
	}
	c.trim(s, n)
}

// lookPart finds the part of a block that continues the first n pages of the chain, which then ends with it.
func (c *Core) lookPart(s *seq, n int, link uint64) bool {
	lo := n * c.cfg.BlockTokens
	hi := min(lo+c.cfg.BlockTokens-1, s.known-1, s.knownIDs())
	if hi <= lo {
		return false
	}
	page, size := c.pool.FindPart(link, c.tokensUpTo(s, n, hi, &c.left), c.cfg.ReuseAnswers && !s.started, func(page int32) bool {
		return c.pool.Place(page) < 0 && c.hasWindow(page) && (c.cfg.Snapshots == 0 || c.pool.Snapshot(page) >= 0)
	})
	if page < 0 {
		return false
	}
	c.chain.pages, c.chain.link, c.chain.from, c.chain.upto = c.chain.pages[:n], link, page, lo+size
	return true
}

// last returns the page at whose end the chain ends, from included; -1 for none.
func (c *chain) last(from int32) int32 {
	switch {
	case from >= 0:
		return from
	case len(c.pages) > 0:
		return c.pages[len(c.pages)-1]
	}
	return -1
}

// copies returns the number of blocks, apart from the chain's, that must be free so that its end can be copied. Without states
// the end can be left out.
func (c *Core) copies() int {
	if c.chain.from >= 0 && c.cfg.Snapshots > 0 {
		return 1
	}
	return 0
}

// shorten takes the end of the chain away.
func (c *Core) shorten(s *seq) {
	n := len(c.chain.pages)
	if c.chain.from < 0 || c.cfg.Snapshots == 0 {
		n--
	}
	c.chain.from = -1
	c.trim(s, max(0, n))
}

// trim shortens the chain to n pages, or fewer where a sequence could not go on.
func (c *Core) trim(s *seq, n int) {
	n = c.resumes(n)
	if n == len(c.chain.pages) {
		return
	}
	c.chain.pages, c.chain.link, c.chain.from = c.chain.pages[:n], s.root, -1
	if n > 0 {
		c.chain.link = c.pool.Serial(c.chain.pages[n-1])
	}
}

// sharing returns the number of blocks of the chain that other sequences hold.
func (c *Core) sharing() (n int) {
	for _, page := range c.chain.pages {
		if c.pool.Place(page) < 0 && c.pool.Held(page) {
			n++
		}
	}
	return n
}

// begin gives a sequence that holds no blocks its cached blocks, with the moves in f, if there is room
// for them and for the next row and at most loads blocks must be loaded. It reports whether there is.
func (c *Core) begin(f *flight, s *seq, loads int) bool {
	c.look(s)
	c.limitLoads(s, loads)
	room := c.room(s)
	for c.chain.last(c.chain.from) >= 0 && len(c.chain.pages)-c.sharing()+c.copies()+1 > room {
		c.shorten(s)
	}
	if room < 1 && !c.reclaim(s, 1) {
		return false
	}
	c.take(f, s)
	return true
}

// take makes the chain the sequence's first blocks.
func (c *Core) take(f *flight, s *seq) {
	s.blocks = slices.Grow(s.blocks[:0], c.cfg.blocksFor(s.req.positions()))
	loads := 0
	s.borrowed = c.sharing()
	for i, page := range c.chain.pages { // all are held before a block is allocated
		c.noteClasses(s, page, i*c.cfg.BlockTokens, s.req.PromptLen)
		if place := c.pool.Place(page); place >= 0 {
			c.pool.Pin(place)
			loads++
		} else {
			c.pool.Hold(page)
		}
	}
	from := c.chain.from
	if from >= 0 && !c.pool.Held(from) && c.pool.Available() < loads+2 {
		from = -1 // there is room for the copy, but not while its source is kept
	}
	if from >= 0 {
		c.noteClasses(s, from, len(c.chain.pages)*c.cfg.BlockTokens, c.chain.upto)
		c.pool.Hold(from)
	}
	c.pinWindows(s)
	s.reached = c.chain.reach
	for _, page := range c.chain.pages {
		if place := c.pool.Place(page); place >= 0 {
			page = c.alloc(f)
			c.addLoad(f, place, page)
		}
		s.blocks = append(s.blocks, page)
	}
	s.linked, s.link = len(c.chain.pages), c.chain.link
	s.computed = s.linked * c.cfg.BlockTokens
	if from >= 0 {
		to := c.alloc(f)
		c.addMove(f, Move{Kind: Copy, From: from, To: to})
		s.blocks = append(s.blocks, to)
		c.copyWindow(f, s, from, to)
		s.computed = c.chain.upto
	}
	if at := c.chain.last(from); at >= 0 && c.cfg.Snapshots > 0 {
		snap := c.pool.Snapshot(at)
		c.pool.PinSnapshot(snap)
		c.addMove(f, Move{Kind: LoadState, From: snap, To: int32(s.slot)})
	}
	s.empty = false
	if s.reuses && !s.started {
		c.stats.PrefixQueries += uint64(s.known)
		c.stats.PrefixHits += uint64(s.computed)
	}
	c.promise(s)
}

// register gives the blocks that are computed up to a position their identity, so that others find
// them.
func (c *Core) register(s *seq, upto int) {
	if !s.reuses {
		return
	}
	was := s.linked
	for upto = min(upto, s.knownIDs()); (s.linked+1)*c.cfg.BlockTokens <= upto; s.linked++ {
		s.link = c.pool.Put(s.blocks[s.linked], s.link, c.tokens(s, s.linked, &c.left))
	}
	if s.linked > was {
		c.unpark(s)
	}
}
