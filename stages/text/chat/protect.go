package chat

import (
	"krater/stages/text/chat/template"
)

// finder finds the texts of tokens in a string: all occurrences, overlapping ones too. It is a byte
// trie.
type finder struct {
	nodes   []map[byte]int // node 0 is the root
	end     []bool
	first   [256]bool // bytes that some text begins with
	longest int
}

func newFinder(texts []string) *finder {
	f := &finder{nodes: []map[byte]int{{}}, end: []bool{false}}
	for _, s := range texts {
		if s == "" {
			continue
		}
		at := 0
		f.first[s[0]] = true
		for i := range len(s) {
			next, ok := f.nodes[at][s[i]]
			if !ok {
				next = len(f.nodes)
				f.nodes = append(f.nodes, map[byte]int{})
				f.end = append(f.end, false)
				f.nodes[at][s[i]] = next
			}
			at = next
		}
		f.end[at] = true
		f.longest = max(f.longest, len(s))
	}
	return f
}

// at calls yield with the end of every text that begins at s[i], the shortest first.
func (f *finder) at(s string, i int, yield func(end int)) {
	if !f.first[s[i]] {
		return
	}
	node := 0
	for j := i; j < len(s); j++ {
		next, ok := f.nodes[node][s[j]]
		if !ok {
			return
		}
		if node = next; f.end[node] {
			yield(j + 1)
		}
	}
}

// spans returns the longest occurrences in s from left to right, without overlap.
func (f *finder) spans(s string) []template.Span {
	if f.longest == 0 {
		return nil
	}
	var out []template.Span
	for i := 0; i < len(s); {
		end := i + 1
		f.at(s, i, func(e int) { end = e })
		if n := end - i; n > 1 || f.endsAt(s[i]) {
			out = append(out, template.Span{From: i, To: end})
		}
		i = end
	}
	return out
}

// endsAt reports whether the single byte c is a text.
func (f *finder) endsAt(c byte) bool {
	next, ok := f.nodes[0][c]
	return ok && f.end[next]
}

// ranges returns the parts of the client's spans that belong to the text of a special token,
// whether the rest of that text is the client's or the template's.
func (t *Template) ranges(text string, client []template.Span) []Range {
	var out []Range
	add := func(from, to int) {
		if n := len(out); n > 0 && from <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, to)
		} else {
			out = append(out, Range{Start: from, End: to})
		}
	}
	for _, c := range client {
		from, to := min(c.From, len(text)), min(c.To, len(text))
		if from == to {
			continue
		}
		if t.protect == nil {
			add(from, to)
			continue
		}
		for i := max(0, from-t.protect.longest+1); i < to; i++ {
			t.protect.at(text, i, func(end int) {
				if end > from {
					add(max(i, from), min(end, to))
				}
			})
		}
	}
	return out
}
