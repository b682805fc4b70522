package scheduler

// nextAhead makes a batch ahead of another, for the first micro-batch where that can be.
func (c *Core) nextAhead() *flight {
	for micro := range c.cfg.MicroBatches {
		before := c.first(micro)
		if before == nil || c.aheadOf(before.ID) != nil || !c.canRunAhead(before) {
			continue
		}
		f := c.record(0)
		f.MicroBatch = micro
		c.takeAhead(f, before)
		if len(f.Spans) > 0 {
			c.stats.Ahead++
			return f
		}
	}
	return nil
}

// Hold sets whether no batch may be made ahead of a batch in flight until that is back. The driver holds
// a batch if the device cannot choose all its tokens, or the tokens after them. Other micro-batches go
// on. Hold does nothing if the batch is not in flight.
func (c *Core) Hold(id uint64, held bool) {
	if f := c.flight(id); f != nil {
		f.held = held
	}
}

// canRunAhead reports whether nothing has to wait for the return of a micro-batch's only batch,
// which is not lost. These would have to wait: an idle stream of the micro-batch, or one that was
// passed by too often elsewhere; the rest of a prompt, or a request that could be admitted, if this
// micro-batch is the first that can take it; a prompt that is itself in flight, since a step ahead
// would run without its rows.
func (c *Core) canRunAhead(before *flight) bool {
	if before.held || before.lost {
		return false
	}
	for _, s := range c.decoding.all() {
		if s.micro == before.MicroBatch || c.overdue(s) {
			return false
		}
	}
	if c.takesPromptsNext(before.MicroBatch) && (c.filling.len() > 0 || c.next() != nil) && c.passRoom(before.Decode) > 0 {
		return false
	}
	for i, s := range before.seqs {
		if s.ended == None && (s.recompute || !before.Spans[i].Last) {
			return false
		}
	}
	return true
}

// takeAhead gives the next row to every stream of the batch before, whose token the device will
// choose there. The end of a prompt is such a row like any other: without it the stream would come
// back idle and break the chain for a step. The last streams are left out where the micro-batch has
// more than its share: another takes them.
func (c *Core) takeAhead(f, before *flight) {
	rows := 0
	for i, s := range before.seqs {
		if before.Spans[i].Last && s.goesOn() {
			rows++
		}
	}
	rows = min(rows, c.fairShare(f.MicroBatch, rows+c.streamsElsewhere(f.MicroBatch)))
	from := 0
	for i, s := range before.seqs {
		if !before.Spans[i].Last {
			continue
		}
		if s.goesOn() && len(f.seqs) < rows && (c.covered(s, s.known+1) || c.room(s) > 0) {
			c.addAhead(f, s, before.ID, from)
		}
		from++
	}
}

// goesOn reports whether a sequence whose next token is being chosen has one after it.
func (s *seq) goesOn() bool {
	return s.ended == None && !s.yields && s.generated()+1 < s.req.MaxNew
}

// addAhead adds the row of the token that s will get from row from of the Wanted ones of the batch
// before.
func (c *Core) addAhead(f *flight, s *seq, after uint64, from int) {
	f.After = after
	table := c.cfg.blocksFor(s.known + 1)
	c.extend(f, s, max(0, table-len(s.blocks)))
	c.saveState(f, s, s.known)
	c.billDecode(s.key)
	f.Spans = append(f.Spans, Span{
		ID: s.req.ID, Slot: s.slot, Row: f.Rows, Len: 1, Pos: s.known,
		Decode: true, Last: true, From: from, Blocks: s.blocks[:table:table], Windows: c.windowTable(s, table),
	})
	f.seqs = append(f.seqs, s)
	f.Rows++
	f.Decode++
	f.Wanted++
	s.inFlight++
}

// aheadOf returns the batch in flight that is ahead of this one, or nil.
func (c *Core) aheadOf(id uint64) *flight {
	for i := range c.flights {
		if f := &c.flights[i]; f.ID != 0 && f.After == id {
			return f
		}
	}
	return nil
}

// releaseIdle releases an ended sequence that came back, unless it is in the batch ahead, too.
func (c *Core) releaseIdle(s *seq) {
	if s.inFlight == 0 {
		c.release(s)
	}
}
