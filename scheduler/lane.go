package scheduler

// A lane is a part of the running streams whose rows travel together, as a
// micro-batch. A stream joins the lane of the batch that has its prompt's last rows,
// and stays there unless lanes become uneven.

// join counts a sequence as a stream of a lane.
func (c *Core) join(s *seq, lane int) {
	if !s.stream {
		s.stream, s.lane = true, lane
		c.rows[lane]++
	}
}

// leave takes a sequence off its lane, if it is a stream.
func (c *Core) leave(s *seq) {
	if s.stream {
		s.stream = false
		c.rows[s.lane]--
	}
}

// move takes a stream to a lane.
func (c *Core) move(s *seq, lane int) {
	c.rows[s.lane]--
	c.rows[lane]++
	s.lane = lane
}

// beside is the number of streams of all lanes but one.
func (c *Core) beside(lane int) int {
	n := -c.rows[lane]
	for _, rows := range c.rows {
		n += rows
	}
	return n
}

// most is the share of a lane where there are so many streams: an even part, and one more
// where it does not come out even and not enough lanes before this one have that.
func (c *Core) most(lane, streams int) int {
	even, more := streams/c.cfg.Lanes, streams%c.cfg.Lanes
	for _, n := range c.rows[:lane] {
		if n > even {
			more--
		}
	}
	return even + min(1, max(0, more))
}

// even evens out the lanes, as far as streams are idle: one that has more than its
// share gives those to the smallest that have waited for the shortest time.
func (c *Core) even() {
	for lane := range c.rows {
		most := c.most(lane, c.beside(lane)+c.rows[lane])
		idle := c.decoding.all()
		for i := len(idle) - 1; i >= 0 && c.rows[lane] > most; i-- {
			if s := idle[i]; s.lane == lane {
				c.move(s, c.smallest())
			}
		}
	}
}

// smallest is the lane with the fewest streams, the first of several.
func (c *Core) smallest() int {
	small := 0
	for lane, n := range c.rows {
		if n < c.rows[small] {
			small = lane
		}
	}
	return small
}

// overdue tells whether an idle stream was passed by as often as may be.
func (c *Core) overdue(s *seq) bool { return c.batches-s.since >= c.cfg.passes() }

// fills tells whether the next batch of a lane may have rows of prompts: whether fewer
// than PrefillBatches others have some.
func (c *Core) fills(lane int) bool {
	others := 0
	for i := range c.flights {
		if f := &c.flights[i]; f.ID != 0 && f.Lane != lane && f.Rows > f.Decode {
			others++
		}
	}
	return others < c.cfg.PrefillBatches
}

// fillsNext tells whether a lane, which has batches in flight, is the first that will
// have none and then may take prompts: batches come back in about the order they were made.
func (c *Core) fillsNext(lane int) bool {
	if !c.fills(lane) {
		return false
	}
	mine := c.newest(lane)
	for other := range c.cfg.Lanes {
		if n := c.newest(other); n != 0 && n < mine && c.fills(other) {
			return false
		}
	}
	return true
}

// newest is the batch of a lane in flight that was made last, 0 for none.
func (c *Core) newest(lane int) (id uint64) {
	for i := range c.flights {
		if f := &c.flights[i]; f.Lane == lane {
			id = max(id, f.ID)
		}
	}
	return id
}
