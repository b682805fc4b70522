package schema

import (
	"slices"

	"krater/stages/text/grammar"
)

// Member is a member of a schema's objects.
type Member struct {
	Name     string
	Required bool
	Value    *grammar.Expr // as JSON
	// Plain is a string as it is, without quotes and escapes; nil where it may be any, or is none.
	Plain *grammar.Expr
}

// Members adds the rules of the members that a schema's objects name, for formats that write each of
// them apart. Errors are *Error.
func Members(rules *grammar.Rules, text []byte, o Options) ([]Member, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	o.Object = true
	c := newCompiler(rules, root, o)
	parts, possible := c.expand(c.roots())
	if c.err == nil && (!possible || slices.ContainsFunc(parts, func(p part) bool { return p.group != "" })) {
		c.fail(root, "parameters are the properties of one object, without anyOf and oneOf")
	}
	if c.err != nil {
		return nil, c.err
	}
	s := c.merge(parts)
	var list []Member
	for _, name := range c.names(s) {
		own, possible := c.named(s, name)
		if !possible {
			continue
		}
		m := Member{Name: name, Required: slices.Contains(s.required, name), Value: c.rule(own)}
		m.Plain = c.plainString(own)
		list = append(list, m)
	}
	if c.err != nil {
		return nil, c.err
	}
	return list, nil
}

// plainString returns the text of strings of an enumeration or a pattern; nil for others.
func (c *compiler) plainString(own []part) *grammar.Expr {
	parts, possible := c.expand(own)
	if !possible || slices.ContainsFunc(parts, func(p part) bool { return p.group != "" }) {
		return nil
	}
	s := c.merge(parts)
	if c.err != nil {
		return nil
	}
	if s.values != nil {
		var words []string
		for _, v := range s.values {
			if v.kind != '"' {
				return nil
			}
			words = append(words, v.text)
		}
		return grammar.Words(words...)
	}
	if s.types != stringType || s.leastChars > 0 || s.mostChars >= 0 {
		return nil
	}
	if sources := c.patterns(s); len(sources) == 1 {
		if e, err := grammar.ParseRegexp(sources[0].text, grammar.RegexpOptions{Search: true}); err == nil {
			return e
		}
	}
	return nil
}
