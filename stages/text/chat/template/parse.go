package template

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of a template: its source in bytes, the nesting of its expressions and blocks. The largest
// template known in the field has 33 KB and nests 17 deep.
const (
	maxSource  = 256 << 10
	maxNesting = 150
	maxChain   = 1000
)

// expr is a compiled expression.
type expr func(f *frame) Value

// link is an operation on the value of an expression: an attribute, a call, a filter, the right
// side of an operator.
type link func(f *frame, v Value) Value

// then returns the expression with links applied one after the other: a long chain must not become
// a deep recursion.
func (e expr) then(links []link) expr {
	if len(links) == 0 {
		return e
	}
	return func(f *frame) Value {
		v := e(f)
		for _, l := range links {
			v = l(f, v)
		}
		return v
	}
}

// stmt is a compiled statement.
type stmt func(f *frame) signal

// signal says how a statement ends.
type signal uint8

const (
	onward    signal = iota
	broken           // by break
	continued        // by continue
)

// block is a run of statements.
type block []stmt

func (b block) run(f *frame) signal {
	for _, s := range b {
		f.steps--
		if end := s(f); end != onward {
			return end
		}
	}
	return onward
}

// text returns the expression for the output of the block, which is read later, in a new scope.
func (b *block) text() expr {
	return func(f *frame) Value {
		g := f.buffered()
		b.run(g)
		return NewString(g.out.String())
	}
}

// parser reads tokens by the grammar of jinja2/parser.py and compiles as it goes.
type parser struct {
	src     string
	toks    []token
	pos     int
	depth   int
	loops   int             // open for blocks of the macro or template at hand
	ids     map[string]int  // the variables, numbered
	names   map[string]bool // identifiers that the template mentions
	special map[string]bool // of caller, kwargs, varargs: read by the macro at hand
	site    *callSite       // the last call that was read
}

func (p *parser) peek() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != kindEnd {
		p.pos++
	}
	return t
}

func (p *parser) fail(t token, format string, args ...any) error {
	return &SyntaxError{
		Line:    1 + strings.Count(p.src[:t.from], "\n"),
		Message: fmt.Sprintf(format, args...),
	}
}

// is reports whether the next token is this operator or keyword, without taking it.
func (p *parser) is(val string) bool {
	t := p.peek()
	return (t.kind == kindOp || t.kind == kindName) && t.val == val
}

// take consumes the next token if it is this operator or keyword.
func (p *parser) take(val string) bool {
	if p.is(val) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(val string) {
	if !p.take(val) {
		panic(p.fail(p.peek(), "expected %q, found %q", val, p.peek().val))
	}
}

func (p *parser) expectKind(k kind, what string) token {
	t := p.next()
	if t.kind != k {
		panic(p.fail(t, "expected %s, found %q", what, t.val))
	}
	return t
}

// more reports whether a list that shut ends continues, and reads the comma before its next part,
// or the end. first says that no part was read yet.
func (p *parser) more(first bool, shut string) bool {
	if !first && !p.take(",") {
		p.expect(shut)
		return false
	}
	return !p.take(shut)
}

// nested guards the recursion; the returned function ends what it began.
func (p *parser) nested() func() {
	if p.depth++; p.depth > maxNesting {
		panic(p.fail(p.peek(), "nested too deeply"))
	}
	return func() { p.depth-- }
}

// ident returns the number of a variable.
func (p *parser) ident(name string) int {
	p.names[name] = true
	id, ok := p.ids[name]
	if !ok {
		id = len(p.ids)
		p.ids[name] = id
	}
	return id
}

// printing returns the statement that writes the value of e.
func printing(e expr) stmt {
	return func(f *frame) signal {
		f.write(f.printed(e(f)))
		return onward
	}
}

// body reads statements up to a block tag named in stop, and leaves the parser after that name.
func (p *parser) body(stop ...string) (b block, end string) {
	defer p.nested()()
	for {
		switch t := p.next(); t.kind {
		case kindText:
			b = append(b, func(f *frame) signal {
				f.write(t.val)
				return onward
			})
		case kindVarOpen:
			b = append(b, printing(p.tuple(true)))
			p.expectKind(kindVarShut, `"}}"`)
		case kindBlockOpen:
			name := p.expectKind(kindName, "a tag name")
			if slices.Contains(stop, name.val) {
				return b, name.val
			}
			b = append(b, p.statement(name))
		default:
			if t.kind == kindEnd && len(stop) == 0 {
				return b, ""
			}
			panic(p.fail(t, "unexpected end of template, expected %s", strings.Join(stop, " or ")))
		}
	}
}

func (p *parser) shut() { p.expectKind(kindBlockShut, `"%}"`) }

// statement reads the block tag whose name has been read.
func (p *parser) statement(name token) stmt {
	switch name.val {
	case "if":
		return p.ifBlock()
	case "for":
		return p.forBlock()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock()
	case "filter":
		return p.filterBlock()
	case "generation", "block":
		return p.scoped(name.val)
	case "break", "continue":
		if p.loops == 0 {
			panic(p.fail(name, "%s outside of a loop", name.val))
		}
		p.shut()
		end := broken
		if name.val == "continue" {
			end = continued
		}
		return func(*frame) signal { return end }
	}
	panic(p.fail(name, "unknown or unsupported tag %q", name.val))
}
