package term

import (
	"bytes"
	"io"
	"regexp"
	"slices"
)

// Style is how a piece of text looks.
type Style string

// The styles, as the parameters of an SGR sequence.
const (
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Rule gives a style to what a pattern matches: its first group, or the whole match.
type Rule struct {
	Style Style
	At    *regexp.Regexp
}

// Painter colours lines that are already laid out, so colours cannot shift a column.
type Painter struct {
	w     io.Writer
	rules []Rule
	line  []byte // the incomplete last line
}

// Paint returns Safe(w), with colours if w shows them. If two rules match the same text, the first
// one wins. A line is written when it ends.
func Paint(w io.Writer, rules ...Rule) io.Writer {
	if !Colours(w) {
		return Safe(w)
	}
	return &Painter{w: w, rules: rules}
}

// Write implements io.Writer.
func (p *Painter) Write(b []byte) (int, error) {
	p.line = append(p.line, b...)
	for {
		end := bytes.IndexByte(p.line, '\n')
		if end < 0 {
			return len(b), nil
		}
		if _, err := p.w.Write(append(p.painted([]byte(Shown(string(p.line[:end])))), '\n')); err != nil {
			return 0, err
		}
		p.line = append(p.line[:0], p.line[end+1:]...)
	}
}

// span is a part of a line with a style.
type span struct {
	from, to int
	style    Style
}

func (p *Painter) painted(line []byte) []byte {
	var spans []span
	for _, r := range p.rules {
		for _, m := range r.At.FindAllSubmatchIndex(line, -1) {
			s := span{m[0], m[1], r.Style}
			if len(m) > 2 {
				s.from, s.to = m[2], m[3]
			}
			taken := slices.ContainsFunc(spans, func(o span) bool { return s.from < o.to && o.from < s.to })
			if s.from >= 0 && s.from < s.to && !taken {
				spans = append(spans, s)
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out []byte
	at := 0
	for _, s := range spans {
		out = append(out, line[at:s.from]...)
		out = append(out, "\x1b["+string(s.style)+"m"...)
		out = append(out, line[s.from:s.to]...)
		out = append(out, "\x1b[0m"...)
		at = s.to
	}
	return append(out, line[at:]...)
}
