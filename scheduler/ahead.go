package scheduler

// takeAhead makes the batch ahead of the only one in flight: the next row of
// every stream in it, whose token the device will choose there. A prompt's end
// is such a row like any other: left out, its stream would come back idle and
// break the chain for a step.
//
// Whatever else can be done goes first, and an idle sequence or a request that
// could be admitted waits for the batch in flight to return, to be in one batch
// with its streams. So does the rest of a prompt that is in flight itself: a step
// ahead would go by without a row of it.
func (c *Core) takeAhead(f *flight) {
	before := c.only()
	if before == nil || c.decoding.len() > 0 || c.filling.len() > 0 || c.admissible() {
		return
	}
	for i, s := range before.seqs {
		if s.ended == None && (s.anew || !before.spans[i].Last) {
			return
		}
	}
	from := 0
	for i, s := range before.seqs {
		if !before.spans[i].Last {
			continue
		}
		if s.ended == None && s.generated()+1 < s.req.MaxNew {
			c.putAhead(f, s, from)
			f.after = before.id
		}
		from++
	}
	if f.after != 0 {
		c.stats.Ahead++
	}
}

// putAhead adds the row of the token that s will get from row from of the
// Wanted ones of the batch before.
func (c *Core) putAhead(f *flight, s *seq, from int) {
	table := c.cfg.blocksFor(s.known + 1)
	f.spans = append(f.spans, Span{
		ID: s.req.ID, Slot: s.slot, Row: f.rows, Len: 1, Pos: s.known,
		Decode: true, Last: true, From: from, Blocks: s.blocks[:table:table],
	})
	f.seqs = append(f.seqs, s)
	f.rows++
	f.decode++
	f.wanted++
	s.flying++
}

// only is the single batch in flight, nil if there are none or several. So it is
// never one that is ahead of another.
func (c *Core) only() *flight {
	var f *flight
	for i := range c.flights {
		switch {
		case c.flights[i].id == 0:
		case f != nil:
			return nil
		default:
			f = &c.flights[i]
		}
	}
	return f
}

// ordinary is the number of batches in flight that are not ahead of another.
func (c *Core) ordinary() int {
	n := 0
	for i := range c.flights {
		if f := &c.flights[i]; f.id != 0 && f.after == 0 {
			n++
		}
	}
	return n
}

// aheadOf is the batch in flight that is ahead of this one, or nil.
func (c *Core) aheadOf(id uint64) *flight {
	for i := range c.flights {
		if f := &c.flights[i]; f.id != 0 && f.after == id {
			return f
		}
	}
	return nil
}

// admissible tells whether admit would take the head of the queue.
func (c *Core) admissible() bool {
	if c.waiting.len() == 0 || len(c.slots) == 0 {
		return false
	}
	need := c.cfg.blocksFor(c.waiting.front().req.positions())
	return need <= c.blocks.Total()-c.blocks.Used()
}

// part releases an ended sequence that came back, unless it is in the batch
// ahead, too.
func (c *Core) part(s *seq) {
	if s.flying == 0 {
		c.release(s)
	}
}

// abandonAhead forgets a batch whose predecessor is still in flight with all its
// sequences.
func (c *Core) abandonAhead(f *flight, cause error, retry bool) {
	c.stats.FailedBatches++
	seqs := f.seqs
	*f = flight{}
	for _, s := range seqs {
		s.flying--
		s.shared = true
		switch {
		case s.ended != None:
		case retry && c.retried(s):
			s.anew = true
		default:
			c.conclude(s, Failed, cause)
		}
	}
}
