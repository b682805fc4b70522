package grammar

import (
	"errors"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// RegexpOptions say what a regular expression is part of.
type RegexpOptions struct {
	// Search takes texts that have a match anywhere. Otherwise the whole text must match.
	Search bool
	// Class makes an Expr of one character. nil: the function of this name.
	Class func(Set) *Expr
}

// ParseRegexp reads a regular expression: what JavaScript, Python and Go have in common. Look-ahead,
// back references and word borders have no automaton and are refused, and so are ^ and $ but at the
// ends of an alternative. Errors are ErrSource.
func ParseRegexp(source string, o RegexpOptions) (*Expr, error) {
	if len(source) > MaxSource {
		return nil, sourceError("it has more than %d bytes", MaxSource)
	}
	re, err := syntax.Parse(GoRegexp(source), syntax.Perl)
	if err != nil {
		if e, ok := errors.AsType[*syntax.Error](err); ok {
			return nil, sourceError("%s: %q", e.Code, clip(e.Expr))
		}
		return nil, sourceError("%v", err)
	}
	if o.Class == nil {
		o.Class = Class
	}
	r := &regexpReader{RegexpOptions: o}
	r.rest = empty
	if o.Search {
		r.rest = Repeat(o.Class(Any), 0, -1)
	}
	e := r.ends(re, true, true)
	return e, r.err
}

// GoRegexp writes a regular expression as package regexp reads it: \u1234 and \u{12345} become
// \x{...}, \Z becomes \z.
func GoRegexp(source string) string {
	var b strings.Builder
	for i := 0; i < len(source); i++ {
		if source[i] != '\\' || i+1 == len(source) {
			b.WriteByte(source[i])
			continue
		}
		i++
		switch rest := source[i+1:]; {
		case source[i] == 'u' && len(rest) > 0 && rest[0] == '{':
			b.WriteString(`\x`)
		case source[i] == 'u' && len(rest) >= 4:
			b.WriteString(`\x{` + rest[:4] + `}`)
			i += 4
		case source[i] == 'Z':
			b.WriteString(`\z`)
		default:
			b.WriteString(source[i-1 : i+1])
		}
	}
	return b.String()
}

type regexpReader struct {
	RegexpOptions
	rest *Expr // what may stand before and behind a match
	err  error
}

// ends reads an expression at the ends of the text, where anchors may be.
func (r *regexpReader) ends(re *syntax.Regexp, left, right bool) *Expr {
	around := func(e *Expr) *Expr {
		parts := []*Expr{e}
		if left {
			parts = append([]*Expr{r.rest}, parts...)
		}
		if right {
			parts = append(parts, r.rest)
		}
		return Seq(parts...)
	}
	switch re.Op {
	case syntax.OpCapture:
		return r.ends(re.Sub[0], left, right)
	case syntax.OpAlternate:
		list := make([]*Expr, len(re.Sub))
		for i, sub := range re.Sub {
			list[i] = r.ends(sub, left, right)
		}
		return Alt(list...)
	case syntax.OpBeginText, syntax.OpEndText:
		return r.ends(&syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{re}}, left, right)
	case syntax.OpConcat:
		subs := slices.Clone(re.Sub)
		for len(subs) > 0 && left && subs[0].Op == syntax.OpBeginText {
			subs = subs[1:]
		}
		anchored := [2]bool{len(subs) < len(re.Sub), false}
		for n := len(subs); n > 0 && right && subs[n-1].Op == syntax.OpEndText; n = len(subs) {
			subs, anchored[1] = subs[:n-1], true
		}
		l, t := left && !anchored[0], right && !anchored[1]
		if len(subs) == 1 {
			return r.ends(subs[0], l, t)
		}
		list := make([]*Expr, len(subs))
		for i, sub := range subs {
			list[i] = r.inner(sub)
		}
		left, right = l, t
		return around(Seq(list...))
	}
	return around(r.inner(re))
}

// inner reads an expression without anchors.
func (r *regexpReader) inner(re *syntax.Regexp) *Expr {
	subs := func() []*Expr {
		list := make([]*Expr, len(re.Sub))
		for i, sub := range re.Sub {
			list[i] = r.inner(sub)
		}
		return list
	}
	switch re.Op {
	case syntax.OpNoMatch:
		return nothing
	case syntax.OpEmptyMatch:
		return empty
	case syntax.OpLiteral:
		list := make([]*Expr, len(re.Rune))
		for i, c := range re.Rune {
			s := Runes(c)
			if re.Flags&syntax.FoldCase != 0 {
				s = folds(c)
			}
			list[i] = r.Class(s)
		}
		return Seq(list...)
	case syntax.OpCharClass:
		ranges := make([]Range, 0, len(re.Rune)/2)
		for i := 0; i < len(re.Rune); i += 2 {
			ranges = append(ranges, Range{re.Rune[i], re.Rune[i+1]})
		}
		return r.Class(NewSet(ranges...))
	case syntax.OpAnyCharNotNL:
		return r.Class(Any.Minus(Runes('\n')))
	case syntax.OpAnyChar:
		return r.Class(Any)
	case syntax.OpCapture:
		return r.inner(re.Sub[0])
	case syntax.OpStar:
		return Repeat(r.inner(re.Sub[0]), 0, -1)
	case syntax.OpPlus:
		return Repeat(r.inner(re.Sub[0]), 1, -1)
	case syntax.OpQuest:
		return Optional(r.inner(re.Sub[0]))
	case syntax.OpRepeat:
		return Repeat(r.inner(re.Sub[0]), re.Min, re.Max)
	case syntax.OpConcat:
		return Seq(subs()...)
	case syntax.OpAlternate:
		return Alt(subs()...)
	}
	if r.err == nil {
		r.err = sourceError("%q is not supported in this place", clip(re.String()))
	}
	return nothing
}

// folds are the characters that differ from c in case only.
func folds(c rune) Set {
	list := []rune{c}
	for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
		list = append(list, f)
	}
	return Runes(list...)
}
