package scheduler

// Position is the number of requests that would start before this one if nothing
// changed, about: the keys of its level take turns. It reports whether the request waits at
// all. It looks through the queue.
func (c *Core) Position(id uint64) (int, bool) {
	s := c.byID[id]
	if s == nil || s.ended != None || s.phase != waiting {
		return 0, false
	}
	n, turn := 0, 0
	for _, w := range c.queue.back.all() {
		if w != s && c.sooner(w, s) {
			n++
		}
	}
	if s.line != nil {
		for s.line.list.all()[turn] != s {
			turn++
		}
	}
	for _, l := range c.queue.lines {
		before := 0
		for _, w := range l.list.all() {
			switch lw, ls := c.level(w), c.level(s); {
			case w == s || w.req.Background && !s.req.Background, lw < ls && w.req.Background == s.req.Background:
			case lw > ls || s.req.Background && !w.req.Background:
				n++
			case s.resumed:
			case l == s.line:
				if w.arrival < s.arrival {
					n++
				}
			case before < turn || before == turn && c.sooner(w, s):
				before++
			}
		}
		n += before
	}
	return n, true
}
