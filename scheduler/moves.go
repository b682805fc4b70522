package scheduler

import "slices"

// state is where a batch saves the state of a sequence: at the end of a block, or of a part of one.
type state struct {
	s     *seq
	block int32
	part  []int32 // tokens of a part, which the batch copies; nil: the sequence's own full block
}

// addMove adds a move to a batch.
func (c *Core) addMove(f *flight, m Move) {
	f.Moves = append(f.Moves, m)
	c.stats.Moves[m.Kind]++
}

// alloc hands out a block, of which there must be one, for a sequence of the batch; what was in it
// may move to host memory first.
func (c *Core) alloc(f *flight) int32 {
	block, place := c.pool.Alloc()
	if place >= 0 {
		c.addMove(f, Move{Kind: Save, From: block, To: place})
	}
	return block
}

// settleMoves tells the pool what became of a batch's moves. Its sequences still hold their blocks.
func (c *Core) settleMoves(f *flight, ok bool) {
	states := f.states
	for _, m := range f.Moves {
		switch m.Kind {
		case Copy:
			c.one[0] = m.From
			c.pool.Free(c.one[:])
		case Save:
			c.pool.Saved(m.To, ok)
		case Load:
			c.pool.Loaded(m.From, m.To, ok)
		case SaveState:
			c.keptState(m.To, states[0], ok)
			states = states[1:]
		case LoadState:
			c.pool.UnpinSnapshot(m.From)
		case CopyWindow:
			c.pool.UnpinWindow(m.From, true)
		}
	}
	c.pool.Free(f.preloaded)
	clear(f.states)
	f.states, f.preloaded = f.states[:0], f.preloaded[:0]
}

// saveState keeps the state of a sequence as it is before its row at pos, if a block ends there. In
// decode the state that it kept before is dropped then: the next turn continues from the last
// border of an answer.
func (c *Core) saveState(f *flight, s *seq, pos int) {
	n := pos / c.cfg.BlockTokens
	if c.cfg.Snapshots == 0 || !s.reuses || pos == 0 || f.After == 0 && s.linked != n {
		return
	}
	if pos%c.cfg.BlockTokens != 0 {
		if f.After == 0 && s.isTurn(pos) {
			c.savePart(f, s, n, s.prompt()[n*c.cfg.BlockTokens:pos])
		}
		return
	}
	block := s.blocks[n-1]
	if c.pool.Snapshot(block) >= 0 {
		return
	}
	if snap := c.pool.TakeSnapshot(); snap >= 0 {
		c.addMove(f, Move{Kind: SaveState, From: int32(s.slot), To: snap})
		f.states = append(f.states, state{s: s, block: block})
	}
}

func (c *Core) keptState(snap int32, st state, ok bool) {
	s := st.s
	if ok && st.part != nil {
		c.pool.Put(st.block, s.link, st.part)
	}
	if !c.pool.Kept(snap, st.block, ok) || st.part != nil {
		return
	}
	c.unpark(s)
	at := 0
	for s.blocks[at] != st.block {
		at++
	}
	if (at+1)*c.cfg.BlockTokens <= s.req.PromptLen {
		return
	}
	if s.stateAt > 0 && s.stateAt-1 < at {
		c.pool.DropSnapshot(s.blocks[s.stateAt-1])
	}
	s.stateAt = at + 1
}

// endAtBorder shortens a span that begins at computed so that it ends where a state can be kept,
// and is waited for. The last rows of a prompt come in a batch of their own after the last border.
func (c *Core) endAtBorder(s *seq, end int) int {
	if c.cfg.Snapshots == 0 || !s.reuses {
		return end
	}
	turn := s.nextTurn(end)
	if b := min(end, s.known-1) / c.cfg.BlockTokens * c.cfg.BlockTokens; b > s.computed && (turn == 0 || c.waitedFor(s)) {
		end = c.wantedBorder(s, b)
	}
	if turn > 0 {
		end = min(end, turn)
	}
	return end
}

// nextTurn returns the first end of a turn after what a sequence has computed, up to end; 0: none.
func (s *seq) nextTurn(end int) int {
	for _, at := range s.req.Turns {
		if at > s.computed && at <= end && at < s.req.PromptLen {
			return at
		}
	}
	return 0
}

func (s *seq) isTurn(pos int) bool {
	return s.phase == filling && pos <= s.req.PromptLen && slices.Contains(s.req.Turns, pos)
}

// savePart keeps the state of a sequence at the end of a turn within block n, with a copy of the block as a part: the
// sequence goes on in its own. It takes only a block that nothing else needs.
func (c *Core) savePart(f *flight, s *seq, n int, tokens []int32) {
	if c.cfg.Window > 0 || c.room(s)-c.promised < 1 || c.pool.Find(s.link, tokens) >= 0 {
		return
	}
	snap := c.pool.TakeSnapshot()
	if snap < 0 {
		return
	}
	from := s.blocks[n]
	c.pool.Hold(from)
	to := c.alloc(f)
	f.preloaded = append(f.preloaded, to)
	c.addMove(f, Move{Kind: Copy, From: from, To: to})
	c.addMove(f, Move{Kind: SaveState, From: int32(s.slot), To: snap})
	f.states = append(f.states, state{s: s, block: to, part: slices.Clone(tokens)})
}

// keepPart gives the last block of a sequence that has ended well, which is not full, an identity: the next turn
// continues in a copy of it. A state is not there any more, and rows of another class are not found by a prompt.
func (c *Core) keepPart(s *seq) {
	n := s.computed / c.cfg.BlockTokens
	if c.cfg.Snapshots > 0 || c.cfg.Classes && !c.cfg.ReuseAnswers || !s.reuses || s.linked != n || s.computed > s.knownIDs() || s.computed%c.cfg.BlockTokens == 0 {
		return
	}
	c.pool.Put(s.blocks[n], s.link, c.tokensUpTo(s, n, s.computed, &c.left))
}
