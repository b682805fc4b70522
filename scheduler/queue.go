package scheduler

// queue holds the waiting requests that only memory, a slot or their turn keeps from starting.
// Those of one account and priority are a line, in order of arrival; preempted ones come before the
// lines of their key and level.
type queue struct {
	lines     []*line
	spare     []*line
	preempted list // preempted, in order of arrival
	n         int
}

// line is a part of the queue whose first request is always the one to start first.
type line struct {
	key      *account
	priority int
	list     list
}

// holds reports whether a sequence belongs to the line.
func (l *line) holds(s *seq) bool {
	return l.key == s.key && l.priority == s.req.Priority
}

func arrivedBefore(a, b *seq) bool { return a.arrival < b.arrival }

// add puts a sequence into its line.
func (q *queue) add(s *seq) {
	q.n++
	if s.resumed {
		q.preempted.insert(s, arrivedBefore)
		return
	}
	s.line = q.lineOf(s)
	s.line.list.insert(s, arrivedBefore)
}

// lineOf returns the line of a sequence, or makes it.
func (q *queue) lineOf(s *seq) *line {
	for _, l := range q.lines {
		if l.holds(s) {
			return l
		}
	}
	var l *line
	if n := len(q.spare); n > 0 {
		l, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		l = &line{}
	}
	l.key, l.priority = s.key, s.req.Priority
	q.lines = append(q.lines, l)
	return l
}

// remove takes a sequence out of its line.
func (q *queue) remove(s *seq) {
	q.n--
	l := s.line
	if l == nil {
		q.preempted.remove(s)
		return
	}
	s.line = nil
	l.list.remove(s)
	if l.list.len() > 0 {
		return
	}
	for i, other := range q.lines {
		if other == l {
			last := len(q.lines) - 1
			q.lines[i], q.lines[last] = q.lines[last], nil
			q.lines = q.lines[:last]
		}
	}
	l.key = nil
	q.spare = append(q.spare, l)
}

// head returns the request whose turn it is, nil for none.
func (c *Core) head() *seq {
	var best *seq
	for _, s := range c.queue.preempted.all() {
		if best == nil || c.earlier(s, best) {
			best = s
		}
	}
	for _, l := range c.queue.lines {
		if s := l.list.front(); best == nil || c.earlier(s, best) {
			best = s
		}
	}
	return best
}

// level returns a sequence's priority plus what it gained by waiting.
func (c *Core) level(s *seq) int {
	if s.phase != waiting || c.cfg.Aging == 0 || s.req.Background {
		return s.level
	}
	return s.level + int((c.batches-s.since)/uint64(c.cfg.Aging))
}

// earlier is the order in which waiting requests start: that of their keys, then sooner.
func (c *Core) earlier(a, b *seq) bool {
	if a.key != b.key {
		return c.enters(a.key, b.key)
	}
	return c.sooner(a, b)
}

// sooner is the order in which prompts get rows: the key that was served less, then level, then
// requests that were preempted and wait, then arrival. With one key and without preemption that is
// priority, then arrival. It is total.
func (c *Core) sooner(a, b *seq) bool {
	if a.key != b.key {
		return a.key.before(b.key)
	}
	if la, lb := c.level(a), c.level(b); la != lb {
		return la > lb
	}
	if ba, bb := a.phase == waiting && a.resumed, b.phase == waiting && b.resumed; ba != bb {
		return ba
	}
	return a.arrival < b.arrival
}

// enqueue makes a sequence wait from now on.
func (c *Core) enqueue(s *seq) {
	s.since = c.batches
	c.queue.add(s)
}

// dequeue takes a waiting sequence out of the queue, or out of those that are parked.
func (c *Core) dequeue(s *seq) {
	if s.runner != nil {
		s.runner = nil
		c.parked.remove(s)
		return
	}
	c.queue.remove(s)
}
