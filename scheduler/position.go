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
	for _, l := range c.queue.lines {
		if l.holds(s) {
			for _, w := range l.list.all() {
				if w.arrival < s.arrival && !s.resumed {
					turn++
				}
			}
		}
	}
	for _, l := range c.queue.lines {
		peers := 0
		for _, w := range l.list.all() {
			switch lw, ls := c.level(w), c.level(s); {
			case w.req.Background != s.req.Background && s.req.Background, w.req.Background == s.req.Background && lw > ls:
				n++
			case w.req.Background != s.req.Background || lw < ls || s.resumed || l.holds(s):
			case peers < turn || peers == turn && c.sooner(w, s):
				peers++
			}
		}
		n += peers
	}
	return n + turn, true
}
