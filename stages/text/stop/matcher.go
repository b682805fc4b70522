// Package stop finds stop strings in text that arrives in pieces.
package stop

import "unicode/utf8"

// Matcher looks for the stop strings of one answer. It releases text as soon as no stop string can
// include it: the withheld text is always the longest end of the text that a stop string could
// begin with.
//
// The stop string that is complete first wins: the one that a reader of the growing text would see
// first. Of several that end at the same byte, the longest wins. So the result does not depend on
// how the text is cut.
//
// Pieces of whole characters give pieces of whole characters. A Matcher belongs to one goroutine at
// a time.
type Matcher struct {
	stops   []pattern
	include bool
	held    string // the end of the text so far, not given out
	matched string
	done    bool
}

// pattern is a stop string in the course of a Knuth-Morris-Pratt search.
type pattern struct {
	text string
	fail []int32 // [len(text)+1]; fail[k]: the longest proper prefix of text that ends text[:k]
	k    int32   // how much of text the input ends with
}

// New starts the search for stops. With include, the stop string found is part of the text given
// out. A stop that is empty or not valid UTF-8 matches nothing.
func New(stops []string, include bool) *Matcher {
	m := &Matcher{include: include}
	for _, s := range stops {
		if s != "" && utf8.ValidString(s) {
			m.stops = append(m.stops, pattern{text: s, fail: failures(s)})
		}
	}
	return m
}

func failures(s string) []int32 {
	fail := make([]int32, len(s)+1)
	k := int32(0)
	for i := 1; i < len(s); i++ {
		for k > 0 && s[i] != s[k] {
			k = fail[k]
		}
		if s[i] == s[k] {
			k++
		}
		fail[i+1] = k
	}
	return fail
}

// step reads one byte and reports whether the stop string is complete.
func (p *pattern) step(c byte) bool {
	for p.k > 0 && c != p.text[p.k] {
		p.k = p.fail[p.k]
	}
	if c == p.text[p.k] {
		p.k++
	}
	return int(p.k) == len(p.text)
}

// Push takes the next piece of text and returns the text that can be released, and the stop string
// that ended the answer or "". Text after a stop string is dropped. After a match, Push releases no
// more text and returns the match again.
func (m *Matcher) Push(text string) (out, matched string) {
	if m.done {
		return "", m.matched
	}
	if len(m.stops) == 0 {
		return text, ""
	}
	for i := range len(text) {
		if m.step(text[i]) {
			return m.finish(text[:i+1]), m.matched
		}
	}
	hold := 0
	for i := range m.stops {
		hold = max(hold, int(m.stops[i].k))
	}
	all := m.held + text
	m.held = all[len(all)-hold:]
	return all[:len(all)-hold], ""
}

// step reads one byte; on a match it sets m.matched.
func (m *Matcher) step(c byte) bool {
	for i := range m.stops {
		if p := &m.stops[i]; p.step(c) && len(p.text) > len(m.matched) {
			m.matched = p.text
		}
	}
	return m.matched != ""
}

// finish ends the search. text is the input since the last Push, up to the end of the stop string.
func (m *Matcher) finish(text string) string {
	all := m.held + text
	m.held, m.done = "", true
	if m.include {
		return all
	}
	return all[:len(all)-len(m.matched)]
}

// Flush returns the withheld text: the text has ended without a stop string.
func (m *Matcher) Flush() string {
	out := m.held
	m.held, m.done = "", true
	return out
}
