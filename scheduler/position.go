package scheduler

// Position is about how many requests would start before this one if nothing changed: keys take
// turns. It reports whether the request waits at all. It looks through the queue.
func (c *Core) Position(id uint64) (int, bool) {
	s := c.byID[id]
	if s == nil || s.ended != None || s.phase != waiting {
		return 0, false
	}
	turn := 0 // those of its key before it
	see := func(l *list) {
		for _, w := range l.all() {
			if w.key == s.key && w != s && c.sooner(w, s) {
				turn++
			}
		}
	}
	see(&c.queue.preempted)
	see(&c.parked)
	for _, l := range c.queue.lines {
		if l.key == s.key {
			see(&l.list)
		}
	}
	n := turn
	for _, a := range c.keys {
		switch waits := a.count[waiting]; {
		case a == s.key || a.background && !s.key.background:
		case a.background != s.key.background:
			n += waits
		case c.enters(a, s.key):
			n += min(waits, turn+1)
		default:
			n += min(waits, turn)
		}
	}
	return n, true
}
