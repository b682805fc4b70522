package scheduler

// Position is the number of requests that would start before this one if nothing
// changed, and whether it waits at all. It looks through the queue.
func (c *Core) Position(id uint64) (int, bool) {
	s := c.byID[id]
	if s == nil || s.ended != None || s.phase != waiting {
		return 0, false
	}
	for i, w := range c.waiting.all() {
		if w == s {
			return i, true
		}
	}
	return 0, false
}
