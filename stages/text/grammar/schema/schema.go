// Package schema makes grammars of JSON schemas. A grammar describes the JSON texts that a schema
// allows, with at most one blank between two tokens. Schemas are of draft 2020-12; forms of keywords
// that earlier drafts had are read as well.
//
// The members of an object come in the order of the schema's properties, and others after them. A
// keyword that is not supported is refused by its name and JSON pointer.
package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"krater/stages/text/grammar"
)

// Limits of a schema.
const (
	MaxBytes  = 1 << 20
	maxDepth  = 128
	maxValues = 1 << 17 // JSON values in it
	maxParts  = 1 << 17 // parts in all combinations of them
	maxEnum   = 1 << 14
)

// Error is a schema that is not supported, or is none.
type Error struct {
	Pointer string // JSON pointer into the schema, "" for all of it
	Reason  string
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return "the schema: " + e.Reason
	}
	return fmt.Sprintf("the schema at %s: %s", e.Pointer, e.Reason)
}

// Options change what a schema means.
type Options struct {
	// Closed forbids members that the schema does not name, where it has no additionalProperties.
	Closed bool
	// Space may stand between two tokens. nil: at most one blank.
	Space *grammar.Expr
	// Object takes objects only, whatever types the schema allows.
	Object bool
	// Escaped are characters that JSON strings have as escapes only.
	Escaped string
	// Notation is how values are written; nil: as JSON.
	Notation *Notation
}

// Add adds the rules of a schema to a grammar, and returns the one of its texts. Errors are *Error.
func Add(rules *grammar.Rules, text []byte, o Options) (*grammar.Expr, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := newCompiler(rules, root, o)
	e := c.rule(c.roots())
	if c.err != nil {
		return nil, c.err
	}
	return e, nil
}

// roots are the schemas that a text must satisfy.
func (c *compiler) roots() []part {
	list := []part{{node: c.root}}
	if c.options.Object {
		object, _ := parse([]byte(`{"type":"object"}`))
		object.id = 0
		list = append(list, part{node: object})
	}
	return list
}

// Object adds the rules of any JSON object.
func Object(rules *grammar.Rules, o Options) *grammar.Expr {
	e, err := Add(rules, []byte(`{"type":"object"}`), o)
	if err != nil {
		panic(err) // the schema is right
	}
	return e
}

// Warm finds masks that most schemas have in common, so that no request waits for them.
func Warm(v *grammar.Vocabulary) error {
	rules := &grammar.Rules{}
	g, err := grammar.New(rules, rules.Add(Object(rules, Options{})), v)
	if err != nil {
		return err
	}
	m := g.Matcher()
	for _, c := range `{"a": "b", "c": [-1.5, true, {}]}` {
		if _, err := m.Mask(); err != nil {
			return err
		}
		if err := m.Text(string(c)); err != nil {
			return err
		}
	}
	return nil
}

// compiler makes rules of parts of a schema.
type compiler struct {
	rules    *grammar.Rules
	root     *value
	options  Options
	known    map[string]*grammar.Expr
	keys     map[string]*grammar.Expr // names of other members, by those that are named
	targets  map[string]*value        // of references
	n        *Notation
	space    *grammar.Expr
	char     *grammar.Expr // of a string
	anything *grammar.Expr // any name of a member; nil: it was not needed yet
	combined int           // parts in known
	err      *Error
}

func newCompiler(rules *grammar.Rules, root *value, o Options) *compiler {
	c := &compiler{rules: rules, root: root, options: o, known: map[string]*grammar.Expr{}, keys: map[string]*grammar.Expr{},
		targets: map[string]*value{}, n: o.Notation, space: o.Space}
	if c.space == nil {
		c.space = grammar.Optional(grammar.Text(" "))
	}
	if c.n == nil {
		c.n = jsonNotation(c.space, o.Escaped)
	}
	c.char = grammar.Rule(rules.Add(c.n.stringChar()))
	return c
}

// part is a schema that a value must satisfy: all of it, or without what was taken apart already.
type part struct {
	node  *value
	group string // anyOf or oneOf: one of these is still to be chosen
	plain bool   // only its own keywords
}

func (p part) less(q part) int {
	if p.node.id != q.node.id {
		return p.node.id - q.node.id
	}
	if p.plain != q.plain {
		if p.plain {
			return 1
		}
		return -1
	}
	return strings.Compare(p.group, q.group)
}

func (c *compiler) fail(at *value, format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Pointer: at.pointer(), Reason: fmt.Sprintf(format, args...)}
	}
}

// No text fits nothing.
var nothing = grammar.Alt()

// rule returns the texts of the values that satisfy all parts. A rule that needs itself is found by
// its parts.
func (c *compiler) rule(parts []part) *grammar.Expr {
	if c.err != nil {
		return nothing
	}
	parts, possible := c.expand(parts)
	if !possible {
		return nothing
	}
	key := make([]byte, 0, 16*len(parts))
	for _, p := range parts {
		key = strconv.AppendInt(key, int64(p.node.id), 36)
		key = append(append(key, p.group...), ',')
	}
	if e, ok := c.known[string(key)]; ok {
		return e
	}
	if c.combined += 1 + len(parts); c.combined > maxParts {
		c.fail(c.root, "its parts combine in too many ways")
		return nothing
	}
	id := c.rules.Add(nil)
	e := grammar.Rule(id)
	c.known[string(key)] = e
	c.rules.Define(id, c.define(parts))
	return e
}

// define makes the text of a rule.
func (c *compiler) define(parts []part) *grammar.Expr {
	for i, p := range parts {
		if p.group == "" {
			continue
		}
		rest := slices.Delete(slices.Clone(parts), i, i+1)
		choices := p.node.member(p.group).items
		if p.group == "oneOf" {
			c.checkApart(p.node, choices, rest)
		}
		list := make([]*grammar.Expr, len(choices))
		for j, choice := range choices {
			list[j] = c.rule(append(slices.Clone(rest), part{node: choice}))
		}
		return grammar.Alt(list...)
	}
	s := c.merge(parts)
	if c.err != nil {
		return nothing
	}
	return c.shape(s)
}

// expand replaces schemas by their own keywords, the schemas that they refer to, and the choices that
// are left. It reports false where nothing satisfies them.
func (c *compiler) expand(parts []part) ([]part, bool) {
	var done []part
	seen := map[part]bool{}
	for work := slices.Clone(parts); len(work) > 0; {
		p := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[p] {
			continue
		}
		seen[p] = true
		if p.plain || p.group != "" {
			done = append(done, p)
			continue
		}
		switch p.node.kind {
		case 't':
			continue
		case 'f':
			return nil, false
		case '{':
		default:
			c.fail(p.node, "a schema is an object, true or false")
			return nil, false
		}
		c.check(p.node)
		if !p.node.trivial() {
			work = append(work, part{node: p.node, plain: true})
		}
		if ref := p.node.member("$ref"); ref != nil {
			if to := c.resolve(ref); to != nil {
				work = append(work, part{node: to})
			}
		}
		for _, one := range c.schemas(p.node, "allOf") {
			work = append(work, part{node: one})
		}
		for _, group := range []string{"anyOf", "oneOf"} {
			if len(c.schemas(p.node, group)) > 0 {
				work = append(work, part{node: p.node, group: group})
			}
		}
	}
	slices.SortFunc(done, part.less)
	return slices.Compact(done), c.err == nil
}

// schemas returns the list of schemas of a keyword.
func (c *compiler) schemas(s *value, keyword string) []*value {
	list := s.member(keyword)
	if list == nil {
		return nil
	}
	if list.kind != '[' || len(list.items) == 0 {
		c.fail(list, "it must be a list of schemas")
		return nil
	}
	return list.items
}

// ignored are keywords that allow and forbid nothing.
var ignored = []string{"title", "description", "default", "examples", "$schema", "$id", "id", "$comment", "$defs", "definitions",
	"deprecated", "readOnly", "writeOnly", "$anchor", "discriminator"}

var supported = []string{"type", "properties", "required", "additionalProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
	"minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "enum", "const"}

var parts = []string{"$ref", "allOf", "anyOf", "oneOf"}

// check refuses keywords that are not supported.
func (c *compiler) check(s *value) {
	if s.checked {
		return
	}
	s.checked = true
	for i, name := range s.names {
		switch {
		case strings.HasPrefix(name, "x-"), slices.Contains(ignored, name), slices.Contains(supported, name), slices.Contains(parts, name):
		case name == "uniqueItems" && s.items[i].kind == 'f':
		default:
			c.fail(s.items[i], "the keyword %q is not supported", clip(name))
		}
	}
}

// trivial reports whether the schema's own keywords allow everything.
func (v *value) trivial() bool {
	return !slices.ContainsFunc(v.names, func(name string) bool { return slices.Contains(supported, name) })
}

func clip(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "..."
	}
	return s
}
