package schema

import (
	"slices"
	"strings"
	"unicode/utf8"

	"krater/stages/text/grammar"
)

// object returns the texts of a shape's objects.
func (c *compiler) object(s *shape) *grammar.Expr {
	names := c.names(s)
	if c.err != nil {
		return nothing
	}
	others, open := c.others(s)
	// rest[first] are the members from one on, where none has come yet or some have.
	var rest [2]*grammar.Expr
	rest[0], rest[1] = grammar.Seq(), grammar.Seq()
	if open {
		member := c.n.Member(c.otherName(names), c.rule(others))
		rest[1] = grammar.Repeat(grammar.Seq(c.n.Comma, member), 0, -1)
		rest[0] = grammar.Optional(grammar.Seq(member, rest[1]))
	}
	for _, name := range slices.Backward(names) {
		parts, possible := c.named(s, name)
		value := nothing
		if possible {
			value = c.rule(parts)
		}
		if c.err != nil {
			return nothing
		}
		member := c.n.Member(grammar.Text(c.n.written(name)), value)
		first, next := grammar.Seq(member, rest[1]), grammar.Seq(c.n.Comma, member, rest[1])
		if slices.Contains(s.required, name) {
			rest[0], rest[1] = first, next
		} else {
			rest[0], rest[1] = grammar.Alt(first, rest[0]), grammar.Alt(next, rest[1])
		}
	}
	return grammar.Seq(c.n.Object[0], rest[0], c.n.Object[1])
}

// names returns the names of the members that a shape names, in their order.
func (c *compiler) names(s *shape) []string {
	var names []string
	seen := map[string]bool{}
	note := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, v := range s.from {
		if p := v.member("properties"); p != nil {
			if p.kind != '{' {
				c.fail(p, "it must be an object of schemas")
				return nil
			}
			for _, name := range p.names {
				c.checkName(p, name)
				note(name)
			}
		}
	}
	for _, name := range s.required {
		note(name)
	}
	return c.n.order(names)
}

// named returns what the member of a name must satisfy.
func (c *compiler) named(s *shape, name string) (parts []part, possible bool) {
	for _, v := range s.from {
		var one *value
		if p := v.member("properties"); p != nil {
			one = p.member(name)
		}
		if one == nil {
			one = v.member("additionalProperties")
		}
		if one != nil {
			if one.kind == 'f' {
				return nil, false
			}
			parts = append(parts, part{node: one})
		}
	}
	return parts, true
}

// others returns what members that are not named must satisfy. open is false where there are none.
func (c *compiler) others(s *shape) (parts []part, open bool) {
	said := false
	for _, v := range s.from {
		if one := v.member("additionalProperties"); one != nil {
			if said = true; one.kind == 'f' {
				return nil, false
			}
			parts = append(parts, part{node: one})
		}
	}
	return parts, said || !c.options.Closed
}

// otherName returns a string that is none of the names. It is written in one way only, so that no escape
// spells a name.
func (c *compiler) otherName(names []string) *grammar.Expr {
	names = slices.Sorted(slices.Values(names))
	key := strings.Join(names, "\x00")
	if e := c.keys[key]; e != nil {
		return e
	}
	if c.anything == nil {
		c.anything = grammar.Rule(c.rules.Add(grammar.Repeat(c.n.nameClass(grammar.Any), 0, -1)))
	}
	if c.n.raw() {
		names = append([]string{""}, names...)
	}
	e := c.anything
	if len(names) > 0 {
		e = c.n.apart(names, c.anything)
	}
	e = grammar.Rule(c.rules.Add(e))
	c.keys[key] = e
	return e
}

// apart is text that is none of the sorted names.
func (n *Notation) apart(names []string, anything *grammar.Expr) *grammar.Expr {
	ends := len(names) > 0 && names[0] == ""
	if ends {
		names = names[1:]
	}
	var list []*grammar.Expr
	if !ends {
		list = append(list, grammar.Seq())
	}
	var used []rune
	for len(names) > 0 {
		first, size := utf8.DecodeRuneInString(names[0])
		same := 0
		var below []string
		for same < len(names) && strings.HasPrefix(names[same], names[0][:size]) {
			below = append(below, names[same][size:])
			same++
		}
		used = append(used, first)
		list = append(list, grammar.Seq(n.nameClass(grammar.Runes(first)), n.apart(below, anything)))
		names = names[same:]
	}
	list = append(list, grammar.Seq(n.nameClass(grammar.Runes(used...).Negate()), anything))
	return grammar.Alt(list...)
}

// array returns the texts of a shape's arrays.
func (c *compiler) array(s *shape) *grammar.Expr {
	prefix := 0
	for _, v := range s.from {
		prefix = max(prefix, len(c.tuple(v)))
	}
	if s.mostItems >= 0 && s.leastItems > s.mostItems {
		return nothing
	}
	rest, open := c.element(s, prefix)
	tail, most := grammar.Seq(), -1 // what follows when prefix elements came
	if s.mostItems >= 0 {
		most = max(0, s.mostItems-prefix)
	}
	need := max(0, s.leastItems-prefix)
	switch {
	case open && prefix == 0 && most != 0:
		more := -1
		if most > 0 {
			more = most - 1
		}
		tail = grammar.Seq(rest, grammar.Repeat(grammar.Seq(c.n.Comma, rest), max(0, need-1), more))
		if need == 0 {
			tail = grammar.Optional(tail)
		}
	case open && most != 0:
		tail = grammar.Repeat(grammar.Seq(c.n.Comma, rest), need, most)
	case need > 0:
		tail = nothing
	}
	for i := prefix - 1; i >= 0; i-- {
		item, possible := c.element(s, i)
		if s.mostItems >= 0 && i >= s.mostItems {
			tail = grammar.Seq()
			continue
		}
		if !possible {
			item = nothing
		}
		if tail = grammar.Seq(item, tail); i > 0 {
			tail = grammar.Seq(c.n.Comma, tail)
		}
		if i >= s.leastItems {
			tail = grammar.Optional(tail)
		}
	}
	return grammar.Seq(c.n.Array[0], tail, c.n.Array[1])
}

// tuple returns the schemas of a schema's first elements.
func (c *compiler) tuple(v *value) []*value {
	list := v.member("prefixItems")
	if items := v.member("items"); list == nil && items != nil && items.kind == '[' { // before 2020-12
		list = items
	}
	if list == nil {
		return nil
	}
	if list.kind != '[' {
		c.fail(list, "it must be a list of schemas")
		return nil
	}
	return list.items
}

// element returns the texts of an element; false where there may be none.
func (c *compiler) element(s *shape, i int) (*grammar.Expr, bool) {
	var parts []part
	for _, v := range s.from {
		tuple := c.tuple(v)
		one := v.member("items")
		if one != nil && one.kind == '[' {
			one = v.member("additionalItems")
		}
		if i < len(tuple) {
			one = tuple[i]
		}
		if one == nil {
			continue
		}
		if one.kind == 'f' {
			return nothing, false
		}
		parts = append(parts, part{node: one})
	}
	return c.n.Item(c.rule(parts)), c.err == nil
}
