package schema

import (
	"slices"
	"strings"

	"krater/stages/text/grammar"
)

// Notation is how values are written, where that is not JSON. Characters of strings and names stand as they are.
type Notation struct {
	Quote         *grammar.Expr    // on both sides of a string
	Stop          string           // ends a string, so that no string contains it
	Object, Array [2]*grammar.Expr // before and behind members and elements
	Comma         *grammar.Expr    // between them
	// Member is a member, and Item an element.
	Member func(name, value *grammar.Expr) *grammar.Expr
	Item   func(value *grammar.Expr) *grammar.Expr
	// Sorted says that members come in the order of their names, without regard to case.
	Sorted bool
	// Untyped says that nothing tells strings from numbers and literals: a value that may be a string and
	// one of these is any text.
	Untyped bool

	bare    grammar.Set   // characters that stand in a JSON string as they are
	escaped grammar.Set   // the others
	escapes *grammar.Expr // of all of them: grammars share its states
}

// jsonNotation is JSON with space between tokens. Characters of escaped are never written as they are.
func jsonNotation(space *grammar.Expr, escaped string) *Notation {
	stand := bare.Minus(grammar.Runes([]rune(escaped)...))
	others := stand.Negate()
	return &Notation{
		bare: stand, escaped: others, escapes: escapes(others),
		Quote:  grammar.Text(`"`),
		Object: [2]*grammar.Expr{grammar.Seq(grammar.Text("{"), space), grammar.Seq(space, grammar.Text("}"))},
		Array:  [2]*grammar.Expr{grammar.Seq(grammar.Text("["), space), grammar.Seq(space, grammar.Text("]"))},
		Comma:  grammar.Seq(space, grammar.Text(","), space),
		Member: func(name, value *grammar.Expr) *grammar.Expr {
			return grammar.Seq(grammar.Text(`"`), name, grammar.Text(`"`), space, grammar.Text(":"), space, value)
		},
		Item: func(value *grammar.Expr) *grammar.Expr { return value },
	}
}

// raw reports whether characters of strings stand as they are.
func (n *Notation) raw() bool { return n.Stop != "" }

// class returns a character of a string.
func (n *Notation) class(s grammar.Set) *grammar.Expr {
	if n.raw() {
		return grammar.Class(s)
	}
	return n.jsonClass(s)
}

// nameClass returns a character of the name of a member that the schema does not name.
func (n *Notation) nameClass(s grammar.Set) *grammar.Expr {
	if n.raw() {
		return grammar.Class(s.And(plainNames))
	}
	return n.jsonClass(s)
}

// plainNames are the characters of names that no notation needs to quote.
var plainNames = grammar.NewSet(grammar.Range{Lo: 'a', Hi: 'z'}, grammar.Range{Lo: 'A', Hi: 'Z'}, grammar.Range{Lo: '0', Hi: '9'},
	grammar.Range{Lo: '_', Hi: '_'}, grammar.Range{Lo: '-', Hi: '-'}, grammar.Range{Lo: '.', Hi: '.'})

// written returns the text of a string or a name.
func (n *Notation) written(s string) string {
	if n.raw() {
		return s
	}
	return n.quote(s)
}

// order puts names in the order in which members come.
func (n *Notation) order(names []string) []string {
	if n.Sorted {
		slices.SortStableFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	}
	return names
}

// checkName refuses a name that the notation cannot write.
func (c *compiler) checkName(at *value, name string) {
	if c.n.raw() && (name == "" || strings.ContainsAny(name, "<>{}[]|/:,\"' \t\r\n")) {
		c.fail(at, "the model's calls cannot have the name %q", clip(name))
	}
}

// rawString returns the texts of a shape's strings without quotes, where characters stand as they are.
func (c *compiler) rawString(s *shape, sources []source) *grammar.Expr {
	switch {
	case len(sources) == 0 && s.leastChars == 0 && s.mostChars < 0:
		return grammar.Until(c.n.Stop)
	case len(sources) == 0 && max(s.leastChars, s.mostChars) > maxProduct/16: // too many states to look for all of Stop
		return grammar.Repeat(grammar.Class(grammar.Any.Minus(grammar.Runes([]rune(c.n.Stop)[0]))), s.leastChars, s.mostChars)
	}
	return c.intersection(sources, s)
}
