package scheduler

import "slices"

// list is a queue of sequences.
type list struct{ array []*seq }

func (l *list) len() int      { return len(l.array) }
func (l *list) all() []*seq   { return l.array }
func (l *list) front() *seq   { return l.array[0] }
func (l *list) append(s *seq) { l.array = append(l.array, s) }

// insert keeps the list in an order. New arrivals belong at or near the back, so the search starts
// there.
func (l *list) insert(s *seq, before func(a, b *seq) bool) {
	i := len(l.array)
	for i > 0 && before(s, l.array[i-1]) {
		i--
	}
	l.array = slices.Insert(l.array, i, s)
}

// remove takes s out, wherever it is.
func (l *list) remove(s *seq) {
	if i := slices.Index(l.array, s); i >= 0 {
		l.array = slices.Delete(l.array, i, i+1)
	}
}

// take removes the sequences for which f returns true, from the front on.
func (l *list) take(f func(*seq) bool) { l.array = slices.DeleteFunc(l.array, f) }
