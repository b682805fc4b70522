package template

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of a template: its source in bytes, the nesting of its expressions and
// blocks. The largest template known in the field has 33 KB and nests 17 deep.
const (
	maxSource  = 256 << 10
	maxNesting = 150
	maxChain   = 1000
)

// expr is a compiled expression.
type expr func(f *frame) (Value, error)

// stmt is a compiled statement. It ends with errBreak or errContinue where the
// tag of that name was met.
type stmt func(f *frame) error

// block is a run of statements.
type block []stmt

func (b block) run(f *frame) error {
	for _, s := range b {
		f.steps--
		if err := s(f); err != nil {
			return err
		}
	}
	return nil
}

// capture is the text that the block writes, in a scope of its own.
func (b block) capture(f *frame) (Value, error) {
	g := f.buffered()
	err := b.run(g)
	return NewString(g.out.String()), err
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

// is tells whether the next token is this operator or keyword, without taking it.
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

func (p *parser) expect(val string) error {
	if !p.take(val) {
		return p.fail(p.peek(), "expected %q, found %q", val, p.peek().val)
	}
	return nil
}

func (p *parser) expectKind(k kind, what string) (token, error) {
	t := p.next()
	if t.kind != k {
		return t, p.fail(t, "expected %s, found %q", what, t.val)
	}
	return t, nil
}

// enter guards the recursion; leave ends what enter began.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail(p.peek(), "nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// ident is the number of a variable.
func (p *parser) ident(name string) int {
	p.names[name] = true
	id, ok := p.ids[name]
	if !ok {
		id = len(p.ids)
		p.ids[name] = id
	}
	return id
}

// printing is the statement that writes the value of e.
func printing(e expr) stmt {
	return func(f *frame) error {
		v, err := e(f)
		if err != nil {
			return err
		}
		return f.write(f.printed(v))
	}
}

// body reads statements up to a block tag named in stop and leaves the parser
// behind that name.
func (p *parser) body(stop ...string) (b block, end string, err error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer p.leave()
	for {
		var s stmt
		var err error
		switch t := p.next(); t.kind {
		case kindText:
			s = func(f *frame) error { return f.write(t.val) }
		case kindVarOpen:
			var e expr
			if e, err = p.tuple(true); err == nil {
				s = printing(e)
				_, err = p.expectKind(kindVarShut, `"}}"`)
			}
		case kindBlockOpen:
			var name token
			if name, err = p.expectKind(kindName, "a tag name"); err == nil {
				if slices.Contains(stop, name.val) {
					return b, name.val, nil
				}
				s, err = p.statement(name)
			}
		default:
			if t.kind == kindEnd && len(stop) == 0 {
				return b, "", nil
			}
			err = p.fail(t, "unexpected end of template, expected %s", strings.Join(stop, " or "))
		}
		if err != nil {
			return nil, "", err
		}
		b = append(b, s)
	}
}

func (p *parser) shut() error {
	_, err := p.expectKind(kindBlockShut, `"%}"`)
	return err
}

// statement reads the block tag whose name has been read.
func (p *parser) statement(name token) (stmt, error) {
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
		return p.scoped(name)
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail(name, "%s outside of a loop", name.val)
		}
		signal := errBreak
		if name.val == "continue" {
			signal = errContinue
		}
		return func(*frame) error { return signal }, p.shut()
	}
	return nil, p.fail(name, "unknown or unsupported tag %q", name.val)
}
