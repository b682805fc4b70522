package schema

import (
	"regexp"
	"slices"
	"unicode/utf8"

	"krater/stages/text/grammar"
)

// maxFollow bounds references that lead to others.
const maxFollow = 64

// satisfies reports whether a value satisfies a schema.
func (c *compiler) satisfies(v, s *value, depth int) bool {
	if depth > maxFollow {
		c.fail(s, "its references lead too far")
	}
	if c.err != nil {
		return false
	}
	switch s.kind {
	case 't':
		return true
	case 'f':
		return false
	}
	c.check(s)
	if !c.holds(v, s, depth) {
		return false
	}
	if ref := s.member("$ref"); ref != nil {
		if to := c.resolve(ref); to == nil || !c.satisfies(v, to, depth+1) {
			return false
		}
	}
	count := func(list []*value) (n int) {
		for _, one := range list {
			if c.satisfies(v, one, depth+1) {
				n++
			}
		}
		return n
	}
	all, some, one := c.schemas(s, "allOf"), c.schemas(s, "anyOf"), c.schemas(s, "oneOf")
	return count(all) == len(all) && (some == nil || count(some) > 0) && (one == nil || count(one) == 1)
}

// holds reports whether a value satisfies a schema's own keywords.
func (c *compiler) holds(v, s *value, depth int) bool {
	m := c.merge([]part{{node: s}})
	if c.err != nil || m.types&typeOf(v) == 0 || m.values != nil && !slices.ContainsFunc(m.values, v.same) {
		return false
	}
	switch v.kind {
	case '"':
		n := utf8.RuneCountInString(v.text)
		if n < m.leastChars || m.mostChars >= 0 && n > m.mostChars {
			return false
		}
		for _, p := range c.patterns(m) {
			re, err := regexp.Compile(grammar.GoRegexp(p.text))
			if err != nil {
				c.fail(p.at, "%v", err)
			}
			if err != nil || !re.MatchString(v.text) {
				return false
			}
		}
	case '0':
		n := c.number(v)
		if n == nil || m.low != nil && (n.Cmp(m.low) < 0 || n.Cmp(m.low) == 0 && m.lowOpen) || m.high != nil && (n.Cmp(m.high) > 0 || n.Cmp(m.high) == 0 && m.highOpen) {
			return false
		}
	case '[':
		if len(v.items) < m.leastItems || m.mostItems >= 0 && len(v.items) > m.mostItems {
			return false
		}
		tuple := c.tuple(s)
		for i, one := range v.items {
			rest := s.member("items")
			if rest != nil && rest.kind == '[' {
				rest = s.member("additionalItems")
			}
			if i < len(tuple) {
				rest = tuple[i]
			}
			if rest != nil && !c.satisfies(one, rest, depth+1) {
				return false
			}
		}
	case '{':
		for _, name := range m.required {
			if v.member(name) == nil {
				return false
			}
		}
		for i, name := range v.names {
			parts, possible := c.named(m, name)
			if !possible || len(parts) > 0 && !c.satisfies(v.items[i], parts[0].node, depth+1) {
				return false
			}
		}
	}
	return true
}

// typeOf returns the type of a value.
func typeOf(v *value) types {
	switch v.kind {
	case '{':
		return objectType
	case '[':
		return arrayType
	case '"':
		return stringType
	case 't', 'f':
		return boolType
	case '0':
		if n := rational(v.text); n != nil && n.IsInt() {
			return wholeType
		}
		return fractionType
	}
	return nullType
}

// maxChoices bounds the alternatives of oneOf.
const maxChoices = 256

// checkApart refuses a oneOf of which two alternatives may hold at once: a grammar has no "not".
func (c *compiler) checkApart(s *value, choices []*value, rest []part) {
	if len(choices) > maxChoices {
		c.fail(s.member("oneOf"), "it has more than %d alternatives", maxChoices)
	}
	for i, a := range choices {
		for _, b := range choices[:i] {
			if c.err == nil && !c.apart(part{node: a}, part{node: b}, 0) {
				c.fail(s.member("oneOf"), "alternatives %s and %s may hold at once; anyOf says what is meant, or a required member with another const in each", b.at, a.at)
			}
		}
	}
}

// apart reports whether it is clear that no value satisfies both schemas.
func (c *compiler) apart(p, q part, depth int) bool {
	if depth > 8 {
		return false
	}
	a, possible := c.expand([]part{p})
	b, alsoPossible := c.expand([]part{q})
	if c.err != nil || !possible || !alsoPossible {
		return true
	}
	for _, side := range []struct {
		parts []part
		other part
	}{{a, q}, {b, p}} {
		for _, one := range side.parts {
			if one.group != "" && !slices.ContainsFunc(one.node.member(one.group).items, func(choice *value) bool {
				return !c.apart(part{node: choice}, side.other, depth+1)
			}) {
				return true
			}
		}
	}
	plain := func(list []part) *shape {
		return c.merge(slices.DeleteFunc(slices.Clone(list), func(p part) bool { return p.group != "" }))
	}
	x, y := plain(a), plain(b)
	if c.err != nil {
		return true
	}
	return c.shapesApart(x, y, q, p, depth)
}

func (c *compiler) shapesApart(x, y *shape, q, p part, depth int) bool {
	common := x.types & y.types
	for _, s := range []struct {
		of    *shape
		other part
	}{{x, q}, {y, p}} {
		if s.of.values != nil {
			return !slices.ContainsFunc(s.of.values, func(v *value) bool {
				ok := c.satisfies(v, s.other.node, 0)
				for _, own := range s.of.from {
					ok = ok && c.holds(v, own, 0)
				}
				return ok
			})
		}
	}
	if common == 0 {
		return true
	}
	if common != objectType {
		return false
	}
	for _, name := range append(slices.Clone(x.required), y.required...) {
		xs, xPossible := c.named(x, name)
		ys, yPossible := c.named(y, name)
		if !xPossible || !yPossible {
			return true
		}
		for _, one := range xs {
			for _, other := range ys {
				if c.apart(one, other, depth+1) {
					return true
				}
			}
		}
	}
	return false
}
