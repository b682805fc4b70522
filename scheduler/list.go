package scheduler

import "slices"

// list is a queue of sequences with a cheap front. Its array is reused; it
// grows only while the list is longer than it ever was.
type list struct {
	array []*seq
	head  int // array[:head] is free
}

func (l *list) len() int      { return len(l.array) - l.head }
func (l *list) all() []*seq   { return l.array[l.head:] }
func (l *list) front() *seq   { return l.array[l.head] }
func (l *list) append(s *seq) { l.room(); l.array = append(l.array, s) }

// pop removes and returns the front; the list must not be empty.
func (l *list) pop() *seq {
	s := l.array[l.head]
	l.array[l.head] = nil
	l.head++
	if l.head == len(l.array) {
		l.array, l.head = l.array[:0], 0
	}
	return s
}

// insert keeps the list in an order. New arrivals belong at or near the back, so the
// search starts there.
func (l *list) insert(s *seq, before func(a, b *seq) bool) {
	l.room()
	i := len(l.array)
	for i > l.head && before(s, l.array[i-1]) {
		i--
	}
	l.array = slices.Insert(l.array, i, s)
}

// remove takes s out, wherever it is.
func (l *list) remove(s *seq) {
	if i := slices.Index(l.all(), s); i >= 0 {
		l.array = slices.Delete(l.array, l.head+i, l.head+i+1)
	}
	if l.len() == 0 {
		l.array, l.head = l.array[:0], 0
	}
}

// take removes, from the front on, those that f takes.
func (l *list) take(f func(*seq) bool) {
	n := l.head
	for _, s := range l.all() {
		if !f(s) {
			l.array[n] = s
			n++
		}
	}
	clear(l.array[n:])
	l.array = l.array[:n]
	if l.len() == 0 {
		l.array, l.head = l.array[:0], 0
	}
}

// clear empties the list.
func (l *list) clear() {
	clear(l.array)
	l.array, l.head = l.array[:0], 0
}

// room moves the list to the start of its array when the end is reached and
// the free part is half of it, so that moving stays cheap on average.
func (l *list) room() {
	if len(l.array) == cap(l.array) && l.head > 0 && l.head >= l.len() {
		n := copy(l.array, l.all())
		clear(l.array[n:])
		l.array, l.head = l.array[:n], 0
	}
}
