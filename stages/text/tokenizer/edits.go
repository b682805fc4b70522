package tokenizer

import "strings"

// edits is a list of replacements in one text, in order and without overlap. A normaliser returns
// it: it is enough to make the new text and to map byte ranges of the old one.
type edits struct {
	list []edit
	buf  []byte // all new text, one after the other
	// exact keeps adjacent edits separate, which only move needs. Without it, a text that changes
	// everywhere costs no more than its bytes.
	exact bool
}

// edit says that text[from:to] becomes buf[lo:hi]. No text has more than 2 GiB.
type edit struct{ from, to, lo, hi int32 }

// replace appends a replacement.
func (e *edits) replace(from, to int, repl string) {
	lo := len(e.buf)
	e.buf = append(e.buf, repl...)
	if n := len(e.list); n > 0 && !e.exact && int(e.list[n-1].to) == from {
		e.list[n-1].to, e.list[n-1].hi = int32(to), int32(len(e.buf))
		return
	}
	e.list = append(e.list, edit{int32(from), int32(to), int32(lo), int32(len(e.buf))})
}

// grow is by how many bytes an edit makes the text longer.
func (d edit) grow() int { return int(d.hi-d.lo) - int(d.to-d.from) }

// apply returns s after the edits.
func (e *edits) apply(s string) string {
	if len(e.list) == 0 {
		return s
	}
	size := len(s)
	for _, d := range e.list {
		size += d.grow()
	}
	var b strings.Builder
	b.Grow(size)
	at := int32(0)
	for _, d := range e.list {
		b.WriteString(s[at:d.from])
		b.Write(e.buf[d.lo:d.hi])
		at = d.to
	}
	b.WriteString(s[at:])
	return b.String()
}

// move maps ranges, ordered and without overlap, to the text after the edits, which must be exact.
// What replaces bytes of a range, be it only in part, belongs to the range.
func (e *edits) move(ranges []Range) []Range {
	if len(ranges) == 0 || len(e.list) == 0 {
		return ranges
	}
	out := make([]Range, 0, len(ranges))
	k, shift := 0, 0 // list[:k] ends at or before the range and grows the text by shift
	for _, r := range ranges {
		for k < len(e.list) && int(e.list[k].to) <= r.Start {
			shift += e.list[k].grow()
			k++
		}
		start := r.Start + shift
		if k < len(e.list) && int(e.list[k].from) < r.Start {
			start = int(e.list[k].from) + shift
		}
		j, s, end := k, shift, r.End
		for j < len(e.list) && int(e.list[j].from) < r.End {
			s += e.list[j].grow()
			end = max(r.End, int(e.list[j].to))
			j++
		}
		out = append(out, Range{start, end + s})
	}
	return out
}
