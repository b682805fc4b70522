package scheduler

// state is where a batch saves the state of a sequence: at the end of a block.
type state struct {
	s     *seq
	block int32
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
	if c.cfg.Snapshots == 0 || !s.reuses || pos == 0 || pos%c.cfg.BlockTokens != 0 || f.After == 0 && s.linked != n {
		return
	}
	block := s.blocks[n-1]
	if c.pool.Snapshot(block) >= 0 {
		return
	}
	if snap := c.pool.TakeSnapshot(); snap >= 0 {
		c.addMove(f, Move{Kind: SaveState, From: int32(s.slot), To: snap})
		f.states = append(f.states, state{s, block})
	}
}

func (c *Core) keptState(snap int32, st state, ok bool) {
	s := st.s
	if !c.pool.Kept(snap, st.block, ok) {
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
	if b := min(end, s.known-1) / c.cfg.BlockTokens * c.cfg.BlockTokens; b > s.computed {
		return c.wantedBorder(s, b)
	}
	return end
}
