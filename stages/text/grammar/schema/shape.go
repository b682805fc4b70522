package schema

import (
	"math/big"
	"slices"
	"strings"

	"krater/stages/text/grammar"
)

// types is a set of JSON types. A number is whole or a fraction.
type types uint8

const (
	nullType types = 1 << iota
	boolType
	wholeType
	fractionType
	stringType
	arrayType
	objectType
	numberType = wholeType | fractionType
	allTypes   = nullType | boolType | numberType | stringType | arrayType | objectType
)

var typeNames = map[string]types{"null": nullType, "boolean": boolType, "integer": wholeType, "number": numberType, "string": stringType, "array": arrayType, "object": objectType}

// shape holds the conditions of several schemas together.
type shape struct {
	from     []*value // the schemas
	types    types
	values   []*value // of enum and const; nil: any
	low      *big.Rat // numbers; nil: no bound
	high     *big.Rat
	lowOpen  bool // the bound itself is not allowed
	highOpen bool

	leastChars, mostChars int // most below 0: no limit
	patterns              []*value
	formats               []*value
	leastItems, mostItems int
	required              []string
}

// merge reads what schemas allow together. They have no choices and references left.
func (c *compiler) merge(parts []part) *shape {
	s := &shape{types: allTypes, mostChars: -1, mostItems: -1}
	for _, p := range parts {
		v := p.node
		s.from = append(s.from, v)
		s.types &= c.types(v)
		s.leastChars = max(s.leastChars, c.count(v, "minLength", 0))
		s.mostChars = least(s.mostChars, c.count(v, "maxLength", -1))
		s.leastItems = max(s.leastItems, c.count(v, "minItems", 0))
		s.mostItems = least(s.mostItems, c.count(v, "maxItems", -1))
		c.bounds(s, v)
		for keyword, list := range map[string]*[]*value{"pattern": &s.patterns, "format": &s.formats} {
			if one := v.member(keyword); one != nil && !slices.ContainsFunc(*list, one.same) {
				*list = append(*list, one)
			}
		}
		if list := v.member("required"); list != nil && list.kind == '[' { // a boolean, in draft 3, is refused below
			for _, one := range list.items {
				if !slices.Contains(s.required, one.text) {
					s.required = append(s.required, one.text)
				}
			}
		} else if list != nil {
			c.fail(list, "it must be a list of names")
		}
		c.values(s, v)
	}
	return s
}

// least is the smaller of two limits, of which those below 0 are none.
func least(a, b int) int {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// types reads the types that a schema allows.
func (c *compiler) types(s *value) types {
	v := s.member("type")
	if v == nil {
		return allTypes
	}
	list := []*value{v}
	if v.kind == '[' {
		list = v.items
	}
	t := types(0)
	for _, one := range list {
		named, ok := typeNames[one.text]
		if !ok || one.kind != '"' {
			c.fail(one, "the type %q is unknown", clip(one.text))
		}
		t |= named
	}
	return t
}

// bounds reads the bounds of numbers.
func (c *compiler) bounds(s *shape, v *value) {
	for _, b := range []struct {
		keyword   string
		low, open bool
	}{{"minimum", true, false}, {"exclusiveMinimum", true, true}, {"maximum", false, false}, {"exclusiveMaximum", false, true}} {
		one := v.member(b.keyword)
		if one == nil {
			continue
		}
		open := b.open
		if one.kind == 't' || one.kind == 'f' { // draft 4: it says how minimum and maximum are meant
			if one = v.member(map[bool]string{true: "minimum", false: "maximum"}[b.low]); one == nil || v.member(b.keyword).kind == 'f' {
				continue
			}
		}
		n := c.number(one)
		if n == nil {
			return
		}
		if b.low {
			if s.low == nil || n.Cmp(s.low) > 0 || n.Cmp(s.low) == 0 && open {
				s.low, s.lowOpen = n, open
			}
		} else if s.high == nil || n.Cmp(s.high) < 0 || n.Cmp(s.high) == 0 && open {
			s.high, s.highOpen = n, open
		}
	}
}

// values reads enum and const.
func (c *compiler) values(s *shape, v *value) {
	narrow := func(list []*value) {
		if s.values == nil {
			s.values = append([]*value{}, list...)
			return
		}
		s.values = slices.DeleteFunc(s.values, func(one *value) bool { return !slices.ContainsFunc(list, one.same) })
	}
	if list := v.member("enum"); list != nil {
		if list.kind != '[' || len(list.items) == 0 || len(list.items) > maxEnum {
			c.fail(list, "it must be a list of 1 to %d values", maxEnum)
			return
		}
		narrow(list.items)
	}
	if one := v.member("const"); one != nil {
		narrow([]*value{one})
	}
}

// shape returns the texts of a shape.
func (c *compiler) shape(s *shape) *grammar.Expr {
	if s.values != nil {
		return c.literals(s)
	}
	var list []*grammar.Expr
	allowed := s.meant()
	add := func(t types, e func() *grammar.Expr) {
		if allowed&t != 0 {
			list = append(list, e())
		}
	}
	add(objectType, func() *grammar.Expr { return c.object(s) })
	add(arrayType, func() *grammar.Expr { return c.array(s) })
	if c.n.Untyped && allowed&stringType != 0 && allowed&(numberType|boolType|nullType) != 0 {
		return grammar.Alt(append(list, grammar.Until(c.n.Stop))...)
	}
	add(stringType, func() *grammar.Expr { return c.string(s) })
	add(numberType, func() *grammar.Expr { return c.numbers(s) })
	add(boolType, func() *grammar.Expr { return grammar.Words("true", "false") })
	add(nullType, func() *grammar.Expr { return grammar.Text("null") })
	return grammar.Alt(list...)
}

// kinds are the types that a keyword is about.
var kinds = map[string]types{
	"properties": objectType, "required": objectType, "additionalProperties": objectType,
	"items": arrayType, "prefixItems": arrayType, "additionalItems": arrayType, "minItems": arrayType, "maxItems": arrayType,
	"minLength": stringType, "maxLength": stringType, "pattern": stringType, "format": stringType,
	"minimum": numberType, "maximum": numberType, "exclusiveMinimum": numberType, "exclusiveMaximum": numberType,
}

// meant are the types of a shape. Where no schema names any, they are the types that its keywords are
// about: the author of {"properties": ...} wants an object, though a string satisfies it, too.
func (s *shape) meant() types {
	if s.types != allTypes {
		return s.types
	}
	t := types(0)
	for _, v := range s.from {
		for _, name := range v.names {
			t |= kinds[name]
		}
	}
	if t == 0 {
		return allTypes
	}
	return t
}

// literals are the values of an enumeration that the rest allows.
func (c *compiler) literals(s *shape) *grammar.Expr {
	var words, texts []string
	var list []*grammar.Expr
	parts := make([]part, len(s.from))
	for i, v := range s.from {
		parts[i] = part{node: v}
	}
	for _, v := range s.values {
		ok := true
		for _, p := range s.from {
			ok = ok && c.holds(v, p, 0)
		}
		if !ok {
			continue
		}
		switch {
		case v.kind == '"' && c.n.raw() && strings.Contains(v.text, c.n.Stop):
		case v.kind == '"':
			texts = append(texts, c.n.written(v.text))
		case v.kind == '{' || v.kind == '[':
			list = append(list, c.literal(v))
		default:
			words = append(words, plain(v))
		}
	}
	if len(texts) > 0 {
		list = append(list, grammar.Seq(c.n.Quote, grammar.Words(texts...), c.n.Quote))
	}
	return grammar.Alt(append(list, grammar.Words(words...))...)
}

// literal returns the text of a value.
func (c *compiler) literal(v *value) *grammar.Expr {
	around := c.n.Array
	switch v.kind {
	case '"':
		return grammar.Seq(c.n.Quote, grammar.Text(c.n.written(v.text)), c.n.Quote)
	case '{':
		around = c.n.Object
	case '[':
	default:
		return grammar.Text(plain(v))
	}
	list := []*grammar.Expr{around[0]}
	for i, one := range v.items {
		if i > 0 {
			list = append(list, c.n.Comma)
		}
		if v.kind == '{' {
			c.checkName(v, v.names[i])
			list = append(list, c.n.Member(grammar.Text(c.n.written(v.names[i])), c.literal(one)))
		} else {
			list = append(list, c.n.Item(c.literal(one)))
		}
	}
	return grammar.Seq(append(list, around[1])...)
}

// plain returns the text of a number or a literal.
func plain(v *value) string {
	switch v.kind {
	case '0':
		return v.text
	case 't':
		return "true"
	case 'f':
		return "false"
	}
	return "null"
}
