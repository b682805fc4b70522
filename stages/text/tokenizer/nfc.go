package tokenizer

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
)

// unicodeForm is NFC, NFD, NFKC or NFKD. Package norm does the work, but for long runs of combining
// marks: after 30 of them it inserts U+034F (the Stream-Safe Text Format of UAX 15), which the
// reference does not.
type unicodeForm struct {
	form    norm.Form
	split   norm.Form // its decomposition: NFD or NFKD
	compose bool
}

var (
	formNFC  = unicodeForm{norm.NFC, norm.NFD, true}
	formNFD  = unicodeForm{norm.NFD, norm.NFD, false}
	formNFKC = unicodeForm{norm.NFKC, norm.NFKD, true}
	formNFKD = unicodeForm{norm.NFKD, norm.NFKD, false}
)

// normVersion is the version of Unicode that the reference normalises with.
const normVersion = "9.0.0"

// normKnown are the characters of normVersion.
var normKnown = rangetable.Assigned(normVersion)

// safeSegment is up to how many characters a segment is left to package norm: no character
// decomposes into more than three marks.
const safeSegment = 10

func (f unicodeForm) edits(s string, e *edits, _ *regexBudget) error {
	for i := 0; i < len(s); {
		i += f.form.QuickSpanString(s[i:])
		if i >= len(s) {
			break
		}
		// i is a boundary; the text up to the next one may need a change.
		end, count := f.segmentEnd(s, i)
		f.segment(s, i, end, count, e)
		i = end
	}
	return nil
}

// segment normalises s[from:to], count characters. A character newer than normVersion stays
// unchanged and separates its neighbours.
func (f unicodeForm) segment(s string, from, to, count int, e *edits) {
	part := func(from, to int) {
		changed := ""
		if count <= safeSegment {
			changed = f.form.String(s[from:to])
		} else {
			changed = f.long(s[from:to])
		}
		if changed != s[from:to] {
			e.replace(from, to, changed)
		}
	}
	for i, n := from, 0; i < to; i += n {
		var r rune
		r, n = runeAt(s, i)
		if r < 128 || unicode.Is(normKnown, r) {
			continue
		}
		if from < i {
			part(from, i)
		}
		from = i + n
	}
	if from < to {
		part(from, to)
	}
}

// boundary reports whether the character at the start of s, or its decomposition, never combines
// with anything before it.
func (f unicodeForm) boundary(s string) bool {
	p := f.form.PropertiesString(s)
	d := p.Decomposition()
	return p.BoundaryBefore() && (d == nil || f.form.Properties(d).BoundaryBefore())
}

// segmentEnd returns the next boundary after s[i] and the number of characters before it.
func (f unicodeForm) segmentEnd(s string, i int) (end, count int) {
	for {
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
		count++
		if i >= len(s) || f.boundary(s[i:]) {
			return i, count
		}
	}
}

// long normalises one segment of any length by the book (Unicode 17, 3.11).
func (f unicodeForm) long(segment string) string {
	type mark struct {
		r   rune
		ccc uint8
	}
	var seq []mark
	for _, r := range segment {
		for _, d := range f.split.String(string(r)) {
			seq = append(seq, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(seq); {
		j := i
		for j < len(seq) && seq[j].ccc != 0 {
			j++
		}
		slices.SortStableFunc(seq[i:j], func(a, b mark) int { return int(a.ccc) - int(b.ccc) })
		i = j + 1
	}
	out := seq[:0]
	starter := -1     // index in out
	last := int16(-1) // class of the character before, -1 right after the starter
	for _, m := range seq {
		if f.compose && starter >= 0 && (last < 0 || m.ccc != 0 && last < int16(m.ccc)) {
			if r, ok := composed(out[starter].r, m.r); ok {
				out[starter].r = r
				continue
			}
		}
		if m.ccc == 0 {
			starter, last = len(out), -1
		} else {
			last = int16(m.ccc)
		}
		out = append(out, m)
	}
	b := make([]byte, 0, len(segment))
	for _, m := range out {
		b = utf8.AppendRune(b, m.r)
	}
	return string(b)
}

// composed returns the primary composite of two characters.
func composed(a, b rune) (rune, bool) {
	text := norm.NFC.Bytes(utf8.AppendRune(utf8.AppendRune(nil, a), b))
	c, n := utf8.DecodeRune(text)
	return c, n == len(text)
}
