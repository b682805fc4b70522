package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a template: its source in bytes, the nesting of its expressions and
// blocks. The largest template known in the field has 33 KB and nests 17 deep.
const (
	maxSource  = 256 << 10
	maxNesting = 150
	maxChain   = 1000
)

// prefix begins the names that the canonical form adds to a template's own;
// neither a template nor a variable may use it.
const prefix = "__k"

// parser reads tokens by the grammar of jinja2/parser.py and writes the
// canonical form as it goes: every method returns the source it makes.
type parser struct {
	src   string
	toks  []token
	pos   int
	depth int
	temps int             // temporary names given out
	loops int             // open for blocks of the macro or template at hand
	used  map[string]bool // functions the canonical form calls
	names map[string]bool // identifiers that the template mentions
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

// call writes a call of the function name of this package.
func (p *parser) call(name string, args ...string) string {
	p.used[name] = true
	return prefix + name + "(" + strings.Join(args, ", ") + ")"
}

// quote writes a string literal that the engine reads back as s.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// ident writes an identifier. The engine takes null for none; to Jinja2 it is a
// name like any other.
func (p *parser) ident(name string) string {
	p.names[name] = true
	if name == "null" {
		return prefix + "null"
	}
	return name
}

func stmt(parts ...string) string { return "{%+ " + strings.Join(parts, " ") + " +%}" }

func (p *parser) output(expr string) string { return "{{ " + p.call("out", expr) + " }}" }

// text writes data; what could be read as a tag goes through a literal.
func text(s string) string {
	if strings.IndexByte(s, '{') >= 0 {
		return "{{ " + quote(s) + " }}"
	}
	return s
}

// body reads statements up to a block tag named in stop and leaves the parser
// behind that name. The code begins with a step that counts the body's data, and
// a turn where there is one.
func (p *parser) body(turn bool, stop ...string) (code, end string, err error) {
	if err := p.enter(); err != nil {
		return "", "", err
	}
	defer p.leave()
	var b strings.Builder
	size := 0
	for {
		t := p.next()
		switch t.kind {
		case kindText:
			size += len(t.val)
			b.WriteString(text(t.val))
		case kindVarOpen:
			e, err := p.tuple(true)
			if err != nil {
				return "", "", err
			}
			if _, err := p.expectKind(kindVarShut, `"}}"`); err != nil {
				return "", "", err
			}
			b.WriteString(p.output(e))
		case kindBlockOpen:
			name, err := p.expectKind(kindName, "a tag name")
			if err != nil {
				return "", "", err
			}
			if slices.Contains(stop, name.val) {
				code := b.String()
				if size > 0 || turn {
					cost := 0
					if turn {
						cost = turnCost
					}
					code = "{{ " + p.call("step", strconv.Itoa(size), strconv.Itoa(cost)) + " }}" + code
				}
				return code, name.val, nil
			}
			s, err := p.statement(name)
			if err != nil {
				return "", "", err
			}
			b.WriteString(s)
		default:
			if t.kind == kindEnd && len(stop) == 0 {
				return b.String(), "", nil
			}
			return "", "", p.fail(t, "unexpected end of template, expected %s", strings.Join(stop, " or "))
		}
	}
}

func (p *parser) shut() error {
	_, err := p.expectKind(kindBlockShut, `"%}"`)
	return err
}

// statement reads the block tag whose name has been read.
func (p *parser) statement(name token) (string, error) {
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
		return p.transparent(name)
	case "break", "continue":
		if p.loops == 0 {
			return "", p.fail(name, "%s outside of a loop", name.val)
		}
		return stmt(name.val), p.shut()
	}
	return "", p.fail(name, "unknown or unsupported tag %q", name.val)
}

// transparent reads a tag that marks a part of the template and changes
// nothing in it: generation (training masks), block (inheritance).
func (p *parser) transparent(name token) (string, error) {
	for p.peek().kind == kindName {
		p.next()
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	code, _, err := p.body(false, "end"+name.val)
	if err != nil {
		return "", err
	}
	if name.val == "block" && p.peek().kind == kindName {
		p.next()
	}
	return code, p.shut()
}
