package scheduler

import "slices"

// makeRoom makes room for the request whose turn it is, where it lacks a slot or memory: it
// preempts background requests, then what other keys run beyond an equal share.
func (c *Core) makeRoom() {
	if c.queue.n == 0 || c.short != nil {
		return
	}
	if len(c.busyKeys) > 1 {
		for _, a := range c.busyKeys {
			c.rank(a)
		}
	}
	for {
		s := c.head()
		if s == nil || s.req.Background || c.background == 0 && c.alone(s) || c.fits(s) {
			return
		}
		v := c.lastBackground()
		if v == nil {
			if c.reclaimShare(s) {
				return
			}
			if s = c.overtaker(s); s != nil && !c.fits(s) {
				c.reclaimShare(s)
			}
			return
		}
		if v.inFlight > 0 {
			v.yields = true
			return
		}
		c.preempt(v)
	}
}

// alone reports whether only the key of s has running sequences.
func (c *Core) alone(s *seq) bool {
	return len(c.busyKeys) == 0 || len(c.busyKeys) == 1 && c.busyKeys[0] == s.key
}

// reclaimShare preempts running sequences of other keys for the request whose turn it is, if that
// is enough for it. A key that gives up a sequence still has as much without it as the other key
// has with the request, so no two keys take the same place from each other in turn. Sequences in
// flight are preempted when their batches are back. It reports whether there is enough.
func (c *Core) reclaimShare(s *seq) bool {
	if c.batches < s.dealAt || !c.hasDebtor(s) {
		return false
	}
	s.dealAt = c.batches + lookEvery
	c.look(s)
	if runner, _ := c.runnerFor(s); runner != nil {
		return false
	}
	need := c.cfg.blocksFor(s.known) - c.sharing()
	slots, free := c.coming()
	n := 0
	list := c.debtors(s, need)
	for ; n < len(list) && (slots == 0 || free < need); n++ {
		slots++
		free += list[n].own() + list[n].promised + 1 // the reserve is one block less
	}
	enough := slots > 0 && free >= need
	if enough {
		s.dealAt = 0
		for _, v := range list[:n] {
			if v.inFlight > 0 {
				v.yields, v.overShare = true, true
			} else {
				c.preempt(v)
			}
		}
	}
	clear(list)
	return enough
}

// coming returns how many slots and blocks are available to a new request once what has ended is
// back from its batches.
func (c *Core) coming() (slots, blocks int) {
	slots, blocks = len(c.slots), c.pool.Available()-c.promised-c.reserve()
	for i := range c.flights {
		f := &c.flights[i]
		for _, s := range f.seqs {
			if s.ended != None && f.After == 0 && c.leads(f, s) {
				slots++
				blocks += s.own()
			}
		}
	}
	return slots, blocks
}

// debtors lists the running sequences that may have to make room for a request that needs that many
// blocks, in the order in which they are preempted.
func (c *Core) debtors(s *seq, need int) []*seq {
	most := c.portionWith(s, need)
	c.debtorList = c.debtorList[:0]
	for _, a := range c.busyKeys {
		for i := len(a.running) - 1; i >= 0 && a != s.key && a.running[i].tier >= most; i-- {
			c.debtorList = append(c.debtorList, a.running[i])
		}
	}
	slices.SortFunc(c.debtorList, func(a, b *seq) int {
		switch {
		case a == b:
			return 0
		case outranks(a, b):
			return 1
		}
		return -1
	})
	return c.debtorList
}

// hasDebtor reports whether another key runs so much that it may have to make room for a request.
func (c *Core) hasDebtor(s *seq) bool {
	most := c.portion(len(s.key.running)+1, 0)
	for _, a := range c.busyKeys {
		if a != s.key && a.running[len(a.running)-1].tier >= most {
			return true
		}
	}
	return false
}

// mustYield reports whether a sequence that is back has to make room for the request whose turn it
// is.
func (c *Core) mustYield(s *seq) bool {
	owes := s.overShare
	s.overShare = false
	w := c.head()
	switch {
	case w == nil || w.req.Background:
		return false
	case s.req.Background:
		return true
	}
	if !owes || c.fits(w) {
		return false
	}
	if o := c.overtaker(w); o != nil {
		w = o
	}
	return w.key != s.key && s.tier >= c.portion(len(w.key.running)+1, 0) && !c.fits(w)
}

// overtaker returns a request that may start before the one whose turn it is and that waits for
// memory. It has another key, which with it has no more than an equal share of slots and memory.
// What started in this way leaves as much as the head needs, so the head fits when those that run
// before it have ended.
func (c *Core) overtaker(head *seq) *seq {
	if head.blocked == 0 {
		head.blocked = c.batches + 1
	}
	if c.short != nil || head.req.Background {
		return nil
	}
	var best *seq
	most := c.portion(c.cfg.MaxSeqs, 0) / max(1, c.active)
	see := func(s *seq) {
		if s.key != head.key && !s.req.Background && (best == nil || c.earlier(s, best)) && c.portionWith(s, c.cfg.blocksFor(s.known)) <= most {
			best = s
		}
	}
	for _, s := range c.queue.preempted.all() {
		see(s)
	}
	for _, l := range c.queue.lines {
		see(l.list.front())
	}
	if best == nil {
		return nil
	}
	left := c.pool.Usable() - c.cfg.blocksFor(head.known) - c.reserve() - 1 - c.cfg.blocksFor(best.known)
	for _, a := range c.busyKeys {
		for _, s := range a.running {
			if s.began >= head.blocked {
				left -= s.own()
			}
		}
	}
	if left < 0 {
		return nil
	}
	return best
}

// portionWith returns the portion of the key of a waiting request with that request and its blocks.
func (c *Core) portionWith(s *seq, blocks int) int {
	return c.portion(len(s.key.running)+1, s.key.blocks+blocks)
}

// overtake puts parked requests that come before the one they wait for into the queue again.
func (c *Core) overtake() {
	if c.parked.len() == 0 {
		return
	}
	c.parked.take(func(s *seq) bool {
		if !c.sooner(s, s.runner) {
			return false
		}
		s.runner = nil
		c.queue.add(s)
		return true
	})
}
