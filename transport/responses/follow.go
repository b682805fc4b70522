package responses

// maxJoined bounds the text that waiting deltas are joined to, in bytes.
const maxJoined = 16 << 10

// follower reads a response's events at its own pace. Not safe for concurrent use; each connection
// has its own.
type follower struct {
	r       *response
	next    int // sequence number of the next event
	wake    chan<- struct{}
	granted int // bytes of text that waited when it began: a replay is no backlog
}

// follow starts after the event with the given sequence number, -1 for all. The final event of an
// ended response is always sent, so that a client that resumes sees an end. wake (capacity 1) is
// signalled when there is something to take.
func (r *response) follow(after int, wake chan<- struct{}) *follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &follower{r: r, next: after + 1, wake: wake}
	if last := len(r.marks) - 1; last >= 0 && r.marks[last].kind.final() {
		f.next = min(f.next, last)
	}
	f.granted = f.waiting()
	r.watchers[wake]++
	select {
	case wake <- struct{}{}:
	default:
	}
	return f
}

// leave ends the wake-ups.
func (f *follower) leave() {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if f.r.watchers[f.wake]--; f.r.watchers[f.wake] <= 0 {
		delete(f.r.watchers, f.wake)
	}
}

// take returns the next event. Deltas that wait are joined to one, which carries the last one's
// sequence number. ok is false while nothing waits.
func (f *follower) take() (ev event, ok bool) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if f.next >= len(f.r.marks) {
		return event{}, false
	}
	r, first := f.r, f.next
	m := r.marks[first]
	var before mark
	if first > 0 {
		before = r.marks[first-1]
	}
	last := first
	if m.kind == textDelta {
		for last+1 < len(r.marks) && r.marks[last+1].kind == textDelta && r.marks[last+1].item == m.item && r.marks[last+1].text-before.text <= maxJoined {
			last++
		}
		m = r.marks[last]
	}
	f.next = last + 1
	ev = event{kind: m.kind, sequence: last}
	if m.kind >= itemAdded && m.kind <= itemDone {
		ev.item, ev.index = r.items[m.item], int(m.item)
	}
	switch i := &ev.item; m.kind {
	case created, inProgress:
		ev.object = r.early(statusInProgress)
	case queued:
		ev.object, ev.position = r.early(statusQueued), r.position
	case prefilled:
		ev.object, ev.progress = r.early(statusInProgress), r.progress[m.item]
	case textDelta:
		ev.text = string(r.text[before.text:m.text])
		ev.tokens = r.tokens[before.tokens:m.tokens]
	case textDone, partDone, itemDone:
		ev.text, ev.tokens, ev.status = string(r.text[i.from:i.to]), r.tokens[i.first:i.last], i.status
	case completed, incomplete, failed:
		ev.object = r.object()
	}
	return ev, true
}

// waiting counts the bytes of text not taken yet; f.r.mu is held.
func (f *follower) waiting() int {
	if n := len(f.r.marks); n > f.next {
		before := 0
		if f.next > 0 {
			before = int(f.r.marks[f.next-1].text)
		}
		return int(f.r.marks[n-1].text) - before
	}
	return 0
}

// backlog counts the bytes of waiting text beyond what waited when the follower began.
func (f *follower) backlog() int {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	n := f.waiting()
	f.granted = min(f.granted, n)
	return n - f.granted
}

// last returns the sequence number of the last event made, -1 for none.
func (r *response) last() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.marks) - 1
}
