package schema

import (
	"fmt"
	"slices"
	"strings"

	"krater/stages/text/grammar"
)

// short are the characters whose escape is a letter.
var short = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

// bare are the characters that may stand in a JSON string as they are.
var bare = grammar.Any.Minus(grammar.NewSet(grammar.Range{Lo: 0, Hi: 0x1f}, grammar.Range{Lo: '"', Hi: '"'}, grammar.Range{Lo: '\\', Hi: '\\'}))

// jsonClass returns a character of a set within a JSON string, written in one way only: as it is if it may
// be, else as a letter's escape if there is one.
func (n *Notation) jsonClass(s grammar.Set) *grammar.Expr {
	e := grammar.Class(s.And(n.bare))
	switch inside := s.And(n.escaped); {
	case len(inside) == 0:
	case slices.Equal(inside, n.escaped):
		e = grammar.Alt(e, n.escapes)
	default:
		e = grammar.Alt(e, escapes(inside))
	}
	return e
}

// escapes are the escapes of a set.
func escapes(s grammar.Set) *grammar.Expr {
	var words []string
	for _, r := range s {
		for c := r.Lo; c <= r.Hi; c++ {
			words = append(words, escape(c))
		}
	}
	return grammar.Words(words...)
}

func escape(c rune) string {
	if e, ok := short[c]; ok {
		return e
	}
	return fmt.Sprintf(`\u%04x`, c)
}

// quote returns the inside of a JSON string as jsonClass writes it.
func (n *Notation) quote(s string) string {
	var b strings.Builder
	for _, c := range s {
		if slices.ContainsFunc(n.bare, func(r grammar.Range) bool { return r.Lo <= c && c <= r.Hi }) {
			b.WriteRune(c)
		} else {
			b.WriteString(escape(c))
		}
	}
	return b.String()
}

// stringChar returns a character of a JSON string in any way that JSON allows. An escaped surrogate comes
// only as half of a pair.
func (n *Notation) stringChar() *grammar.Expr {
	hex := func(s string) *grammar.Expr {
		var set []grammar.Range
		for _, c := range s {
			set = append(set, grammar.Range{Lo: c, Hi: c})
			if c >= 'A' {
				set = append(set, grammar.Range{Lo: c | 0x20, Hi: c | 0x20})
			}
		}
		return grammar.Class(grammar.NewSet(set...))
	}
	digit := hex("0123456789ABCDEF")
	unit := grammar.Alt(
		grammar.Seq(hex("0123456789ABCEF"), digit, digit, digit),
		grammar.Seq(hex("D"), hex("01234567"), digit, digit),
		grammar.Seq(hex("D"), hex("89AB"), digit, digit, grammar.Text(`\u`), hex("D"), hex("CDEF"), digit, digit))
	letter := grammar.Class(grammar.Runes('"', '\\', '/', 'b', 'f', 'n', 'r', 't'))
	return grammar.Alt(grammar.Class(n.bare), grammar.Seq(grammar.Text(`\`), grammar.Alt(letter, grammar.Seq(grammar.Text("u"), unit))))
}

// string returns the texts of a shape's strings.
func (c *compiler) string(s *shape) *grammar.Expr {
	if s.mostChars >= 0 && s.leastChars > s.mostChars {
		return nothing
	}
	sources := c.patterns(s)
	body := nothing
	switch {
	case c.err != nil:
	case c.n.raw():
		body = c.rawString(s, sources)
	case len(sources) == 0:
		body = grammar.Repeat(c.char, s.leastChars, s.mostChars)
	case len(sources) == 1 && s.leastChars == 0 && s.mostChars < 0:
		e, err := grammar.ParseRegexp(sources[0].text, grammar.RegexpOptions{Search: true, Class: c.n.class})
		if err != nil {
			c.fail(sources[0].at, "%v", err)
			return nothing
		}
		body = e
	default:
		body = c.intersection(sources, s)
	}
	return grammar.Seq(c.n.Quote, body, c.n.Quote)
}

// source is a regular expression, and where the schema has it.
type source struct {
	text string
	at   *value
}

// formats are regular expressions of the values of "format".
var formats = map[string]string{
	"date-time": `^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$|` +
		`^\d{4}-(0[13-9]|1[0-2])-(29|30)T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$|` +
		`^\d{4}-(0[13578]|1[02])-31T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`,
	"date":     `^\d{4}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)$`,
	"time":     `^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`,
	"duration": `^P(\d{1,9}W|(\d{1,9}Y)(\d{1,9}M(\d{1,9}D)?)?(T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))?|(\d{1,9}M(\d{1,9}D)?|\d{1,9}D)(T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))?|T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))$`,
	"email":    `^[A-Za-z0-9_+-]{1,20}(\.[A-Za-z0-9_+-]{1,20}){0,2}@[A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?){1,4}$`,
	"hostname": `^[A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?){0,4}$`,
	"ipv4":     `^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$`,
	"ipv6":     `^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$|^([0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}$|^::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,6})?$`,
	"uuid":     `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`,
	"uri":      `^[A-Za-z][A-Za-z0-9+.-]{0,20}://[A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?){0,4}(:\d{1,4})?(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?$`,
}

// patterns returns what pattern and format ask of strings.
func (c *compiler) patterns(s *shape) (list []source) {
	for _, p := range s.patterns {
		if p.kind != '"' {
			c.fail(p, "it must be a regular expression")
			return nil
		}
		list = append(list, source{p.text, p})
	}
	for _, f := range s.formats {
		text, ok := formats[f.text]
		if !ok {
			c.fail(f, "the format %q is not supported", clip(f.text))
			return nil
		}
		list = append(list, source{text, f})
	}
	return slices.CompactFunc(list, func(a, b source) bool { return a.text == b.text })
}
