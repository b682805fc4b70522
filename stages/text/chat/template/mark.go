package template

import (
	"strings"
)

// Marks are two bytes that valid UTF-8 cannot hold. A string of a render is a run of plain text and
// marked parts: open, text, shut. Every string value is balanced, marked parts do not nest and are
// not empty.
const (
	markOpen = '\xfe'
	markShut = '\xff'
)

// Span is a range of bytes.
type Span struct{ From, To int }

// MarkString marks s as a client's words, except the spans, which are in order and do not overlap.
func MarkString(s string, except ...Span) string {
	if s == "" {
		return ""
	}
	var b strings.Builder
	b.Grow(len(s) + 2 + 2*len(except))
	at := 0
	for _, e := range except {
		mark(&b, s[at:e.From])
		b.WriteString(s[e.From:e.To])
		at = e.To
	}
	mark(&b, s[at:])
	return b.String()
}

func mark(b *strings.Builder, s string) {
	if s != "" {
		b.WriteByte(markOpen)
		b.WriteString(s)
		b.WriteByte(markShut)
	}
}

// Mark returns a copy of v in which every string and every key is marked.
func Mark(v Value) Value {
	switch {
	case v.IsString():
		return NewString(MarkString(v.AsString()))
	case v.IsList():
		items := make([]Value, v.AsList().Len())
		for i, item := range v.AsList().Items {
			items[i] = Mark(item)
		}
		return NewList(items)
	case v.IsDict():
		d := NewDict()
		for _, k := range v.AsDict().Keys {
			d.AsDict().Set(k, Mark(v.AsDict().Data[k]))
		}
		MarkKeys(d)
		return d
	}
	return v
}

// MarkKeys marks the keys of the dict v.
func MarkKeys(v Value) { v.AsDict().client = true }

// key returns a key with its marks.
func (d *Dict) key(k string) string {
	if d.client {
		return MarkString(k)
	}
	return k
}

// plain removes the marks from s.
func plain(s string) string {
	i := strings.IndexByte(s, markOpen)
	if i < 0 {
		return s
	}
	if n := len(s) - 1; i == 0 && strings.IndexByte(s, markShut) == n {
		return s[1:n]
	}
	text, _ := Unmark(s)
	return text
}

// Unmark separates a marked string into its text and the spans of the text that are marked, in
// order; neighbours are joined.
func Unmark(s string) (text string, marked []Span) {
	if strings.IndexByte(s, markOpen) < 0 {
		return s, nil
	}
	var b strings.Builder
	b.Grow(len(s))
	for s != "" {
		i := strings.IndexByte(s, markOpen)
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		j := strings.IndexByte(s, markShut)
		from := b.Len()
		b.WriteString(s[:j])
		if n := len(marked); n > 0 && marked[n-1].To == from {
			marked[n-1].To = b.Len()
		} else {
			marked = append(marked, Span{from, b.Len()})
		}
		s = s[j+1:]
	}
	return b.String(), marked
}

// view is a string with its marks set apart, for work by position.
type view struct {
	text  string
	spans []Span
}

func viewOf(s string) view {
	text, spans := Unmark(s)
	return view{text, spans}
}

// cut is text[from:to] with its marks.
func (v view) cut(from, to int) string {
	if from >= to {
		return ""
	}
	if len(v.spans) == 0 {
		return v.text[from:to]
	}
	var b strings.Builder
	b.Grow(to - from + 2)
	at := from
	for _, s := range v.spans {
		a, z := max(s.From, from), min(s.To, to)
		if a >= z {
			continue
		}
		b.WriteString(v.text[at:a])
		mark(&b, v.text[a:z])
		at = z
	}
	b.WriteString(v.text[at:to])
	return b.String()
}

// mapParts applies f to every maximal part of s that is entirely marked or entirely unmarked.
func mapParts(s string, f func(string) string) string {
	if strings.IndexByte(s, markOpen) < 0 {
		return f(s)
	}
	v := viewOf(s)
	var b strings.Builder
	b.Grow(len(s))
	at := 0
	for _, span := range v.spans {
		b.WriteString(f(v.text[at:span.From]))
		mark(&b, f(v.text[span.From:span.To]))
		at = span.To
	}
	b.WriteString(f(v.text[at:]))
	return b.String()
}
