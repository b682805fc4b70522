package grammar

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxNesting bounds brackets within brackets.
const maxNesting = 256

// ParseGBNF reads a grammar in the language of llama.cpp: rules "name ::= ...", of which "root" is
// the first; literals, classes of characters, groups, alternatives, and repetitions. Errors are
// ErrSource.
func ParseGBNF(source string) (*Rules, int32, error) {
	if len(source) > MaxSource {
		return nil, 0, sourceError("it has more than %d bytes", MaxSource)
	}
	if !utf8.ValidString(source) {
		return nil, 0, sourceError("it is not UTF-8")
	}
	p := &gbnf{text: source, rules: &Rules{}, ids: map[string]int32{}}
	for p.space(); p.at < len(p.text) && p.err == nil; p.space() {
		p.rule()
	}
	if p.err != nil {
		return nil, 0, p.err
	}
	for name, id := range p.ids {
		if p.rules.list[id] == nil {
			return nil, 0, sourceError("rule %q is used and not defined", clip(name))
		}
	}
	root, ok := p.ids["root"]
	if !ok {
		return nil, 0, sourceError(`there is no rule "root"`)
	}
	return p.rules, root, nil
}

type gbnf struct {
	text  string
	at    int
	depth int
	rules *Rules
	ids   map[string]int32
	err   error
}

// clip bounds text of a message.
func clip(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "..."
	}
	return s
}

func (p *gbnf) fail(what string) {
	if p.err == nil {
		line := strings.Count(p.text[:p.at], "\n")
		column := p.at - strings.LastIndexByte(p.text[:p.at], '\n')
		p.err = sourceError("line %d, column %d: %s", line+1, column, what)
	}
	p.at = len(p.text)
}

// space passes white space and comments.
func (p *gbnf) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		case '#':
			n := strings.IndexByte(p.text[p.at:], '\n')
			if n < 0 {
				n = len(p.text) - p.at
			}
			p.at += n
		default:
			return
		}
	}
}

func (p *gbnf) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func wordByte(c byte) bool {
	return c == '-' || c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// word reads a name, "" for none.
func (p *gbnf) word() string {
	from := p.at
	for wordByte(p.peek()) {
		p.at++
	}
	return p.text[from:p.at]
}

// id returns the number of a rule, which may be defined later.
func (p *gbnf) id(name string) int32 {
	id, ok := p.ids[name]
	if !ok {
		id = p.rules.Add(nil)
		p.ids[name] = id
	}
	return id
}

// defines reports whether a rule begins here.
func (p *gbnf) defines() bool {
	from := p.at
	defer func() { p.at = from }()
	if p.word() == "" {
		return false
	}
	p.space()
	return strings.HasPrefix(p.text[p.at:], "::=")
}

func (p *gbnf) rule() {
	if !p.defines() {
		p.fail("a rule, name ::= ..., is expected")
		return
	}
	id := p.id(p.word())
	p.space()
	p.at += len("::=")
	if p.rules.list[id] != nil {
		p.fail("the rule is defined twice")
		return
	}
	p.rules.Define(id, p.alternatives())
	if p.at < len(p.text) && !p.defines() {
		p.fail("what stands here is no part of a rule")
	}
}

func (p *gbnf) alternatives() *Expr {
	if p.depth++; p.depth > maxNesting {
		p.fail("brackets are nested too deep")
	}
	defer func() { p.depth-- }()
	var list []*Expr
	for {
		list = append(list, p.sequence())
		if p.space(); p.peek() != '|' {
			return Alt(list...)
		}
		p.at++
	}
}

func (p *gbnf) sequence() *Expr {
	var list []*Expr
	for p.space(); ; p.space() {
		e := p.item()
		if e == nil {
			return Seq(list...)
		}
		list = append(list, p.repeated(e))
	}
}

// item reads one part of a sequence; nil at its end.
func (p *gbnf) item() *Expr {
	switch c := p.peek(); {
	case c == '"':
		return p.literal()
	case c == '[':
		return p.class()
	case c == '.':
		p.at++
		return Class(Any)
	case c == '(':
		p.at++
		e := p.alternatives()
		if p.space(); p.peek() != ')' {
			p.fail("a ) is missing")
			return nil
		}
		p.at++
		return e
	case wordByte(c) && !p.defines():
		return Rule(p.id(p.word()))
	}
	return nil
}

// repeated reads what may follow a part: *, +, ? or counts.
func (p *gbnf) repeated(e *Expr) *Expr {
	for {
		switch p.space(); p.peek() {
		case '*':
			e = Repeat(e, 0, -1)
		case '+':
			e = Repeat(e, 1, -1)
		case '?':
			e = Optional(e)
		case '{':
			if e = p.counts(e); e == nil {
				return empty
			}
			continue
		default:
			return e
		}
		p.at++
	}
}

func (p *gbnf) counts(e *Expr) *Expr {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 {
		p.fail("a } is missing")
		return nil
	}
	low, high, two := strings.Cut(p.text[p.at+1:p.at+end], ",")
	number := func(s string, none int) int {
		if s = strings.TrimSpace(s); s == "" && two {
			return none
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 1<<30 {
			p.fail("a count is not a number")
		}
		return n
	}
	least, most := number(low, 0), 0
	if most = least; two {
		most = number(high, -1)
	}
	if most >= 0 && most < least {
		p.fail("the larger count comes first")
	}
	if p.err != nil {
		return nil
	}
	p.at += end + 1
	return Repeat(e, least, most)
}

// char reads a character, which may be an escape.
func (p *gbnf) char() rune {
	c, n := utf8.DecodeRuneInString(p.text[p.at:])
	if n == 0 {
		p.fail("the text ends within quotes or a class")
		return 0
	}
	p.at += n
	if c != '\\' {
		return c
	}
	c, n = utf8.DecodeRuneInString(p.text[p.at:])
	p.at += n
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'x':
		return p.hex(2)
	case 'u':
		return p.hex(4)
	case 'U':
		return p.hex(8)
	case '\\', '"', '[', ']', '-', '^', '/', '\'':
		return c
	}
	p.fail("the escape is unknown")
	return 0
}

func (p *gbnf) hex(digits int) rune {
	end := min(p.at+digits, len(p.text))
	n, err := strconv.ParseUint(p.text[p.at:end], 16, 32)
	if err != nil || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		p.fail("the escape is not the number of a character")
		return 0
	}
	p.at = end
	return rune(n)
}

func (p *gbnf) literal() *Expr {
	var b strings.Builder
	for p.at++; p.peek() != '"' && p.err == nil; {
		b.WriteRune(p.char())
	}
	p.at++
	return Text(b.String())
}

func (p *gbnf) class() *Expr {
	p.at++
	negated := p.peek() == '^'
	if negated {
		p.at++
	}
	var ranges []Range
	for p.peek() != ']' && p.err == nil {
		r := Range{}
		r.Lo = p.char()
		if r.Hi = r.Lo; p.peek() == '-' && p.at+1 < len(p.text) && p.text[p.at+1] != ']' {
			p.at++
			r.Hi = p.char()
		}
		ranges = append(ranges, r)
	}
	p.at++
	s := NewSet(ranges...)
	if negated {
		s = s.Negate()
	}
	return Class(s)
}
