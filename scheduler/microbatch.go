package scheduler

// A micro-batch is a part of the running streams whose decode rows are in one batch. A stream
// joins the micro-batch of the batch that has its prompt's last rows, and stays there unless
// micro-batches become unequal.

// joinMicro counts a sequence as a stream of a micro-batch.
func (c *Core) joinMicro(s *seq, micro int) {
	if !s.streaming {
		s.streaming, s.micro = true, micro
		c.streams[micro]++
	}
}

// leaveMicro takes a sequence off its micro-batch, if it is a stream.
func (c *Core) leaveMicro(s *seq) {
	if s.streaming {
		s.streaming = false
		c.streams[s.micro]--
	}
}

// moveMicro takes a stream to a micro-batch.
func (c *Core) moveMicro(s *seq, micro int) {
	c.streams[s.micro]--
	c.streams[micro]++
	s.micro = micro
}

// streamsElsewhere returns the number of streams of all micro-batches but one.
func (c *Core) streamsElsewhere(micro int) int {
	n := -c.streams[micro]
	for _, rows := range c.streams {
		n += rows
	}
	return n
}

// fairShare returns the share of a micro-batch where there are that many streams: an equal part, and one
// more where the division leaves a rest and not enough micro-batches before this one have that.
func (c *Core) fairShare(micro, streams int) int {
	even, more := streams/c.cfg.MicroBatches, streams%c.cfg.MicroBatches
	for _, n := range c.streams[:micro] {
		if n > even {
			more--
		}
	}
	return even + min(1, max(0, more))
}

// balance makes the sizes of the micro-batches equal by moving idle streams. A micro-batch with more than
// its share gives the streams that have waited for the shortest time to the smallest one.
func (c *Core) balance() {
	for micro := range c.streams {
		most := c.fairShare(micro, c.streamsElsewhere(micro)+c.streams[micro])
		idle := c.decoding.all()
		for i := len(idle) - 1; i >= 0 && c.streams[micro] > most; i-- {
			if s := idle[i]; s.micro == micro {
				c.moveMicro(s, c.smallestMicro())
			}
		}
	}
}

// smallestMicro returns the micro-batch with the fewest streams, the first of several.
func (c *Core) smallestMicro() int {
	small := 0
	for micro, n := range c.streams {
		if n < c.streams[small] {
			small = micro
		}
	}
	return small
}

// overdue reports whether an idle stream was passed by as often as is allowed.
func (c *Core) overdue(s *seq) bool { return c.batches-s.since >= c.cfg.maxPasses() }

// takesPrompts reports whether the next batch of a micro-batch may have rows of prompts: whether
// fewer than PrefillBatches others have some.
func (c *Core) takesPrompts(micro int) bool {
	others := 0
	for i := range c.flights {
		if f := &c.flights[i]; f.ID != 0 && f.MicroBatch != micro && f.Rows > f.Decode {
			others++
		}
	}
	return others < c.cfg.PrefillBatches
}

// takesPromptsNext reports whether a micro-batch, which has batches in flight, is the first that
// will have none and then may take prompts: batches come back in about the order they were made.
func (c *Core) takesPromptsNext(micro int) bool {
	if !c.takesPrompts(micro) {
		return false
	}
	mine := c.newest(micro)
	for other := range c.cfg.MicroBatches {
		if n := c.newest(other); n != 0 && n < mine && c.takesPrompts(other) {
			return false
		}
	}
	return true
}

// newest returns the id of the batch of a micro-batch in flight that was made last, 0 for none.
func (c *Core) newest(micro int) (id uint64) {
	for i := range c.flights {
		if f := &c.flights[i]; f.MicroBatch == micro {
			id = max(id, f.ID)
		}
	}
	return id
}
