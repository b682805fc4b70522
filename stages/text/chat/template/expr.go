package template

import (
	"strconv"
	"strings"
)

// between returns the source from token start to the last token taken.
func (p *parser) between(start token) string {
	s := p.src[start.from:p.toks[p.pos-1].to]
	if len(s) > 80 {
		s = s[:strings.LastIndexAny(s[:80], " .[(")+1] + "..."
	}
	return strings.ToValidUTF8(s, "")
}

// all evaluates expressions from left to right.
func (f *frame) all(list []expr) []Value {
	out := make([]Value, len(list))
	for i, e := range list {
		out[i] = e(f)
	}
	f.spend(len(list) / 16)
	return out
}

// several reads operands joined by an operator that takes any number of them; a single operand
// stays unchanged.
func (p *parser) several(op string, operand func() expr, join func(list []expr) expr) expr {
	e := operand()
	if !p.is(op) {
		return e
	}
	list := []expr{e}
	for p.take(op) {
		if list = append(list, operand()); len(list) > maxChain {
			panic(p.fail(p.peek(), "expression too long"))
		}
	}
	return join(list)
}

// tuple reads an expression, or several with commas between; cond allows the inline if.
func (p *parser) tuple(cond bool) expr {
	one := p.or
	if cond {
		one = p.expr
	}
	e := one()
	if !p.is(",") {
		return e
	}
	list := []expr{e}
	for p.take(",") {
		k := p.peek().kind
		if k == kindVarShut || k == kindBlockShut || p.is(")") || p.is("in") {
			break
		}
		list = append(list, one())
	}
	return func(f *frame) Value { return newTuple(f.all(list)...) }
}

// expr reads an expression with the inline if.
func (p *parser) expr() expr {
	defer p.nested()()
	e := p.or()
	for p.take("if") {
		yes, cond, no := e, p.or(), constant(Value{})
		if p.take("else") {
			no = p.expr()
		}
		e = func(f *frame) Value {
			if cond(f).IsTruthy() {
				return yes(f)
			}
			return no(f)
		}
	}
	return e
}

func constant(v Value) expr {
	return func(f *frame) Value {
		f.steps--
		return v
	}
}

func (p *parser) or() expr  { return p.several("or", p.and, shortCircuit(true)) }
func (p *parser) and() expr { return p.several("and", p.not, shortCircuit(false)) }

// shortCircuit returns the first of some values whose truth is the one given, or the last.
func shortCircuit(truth bool) func([]expr) expr {
	return func(list []expr) expr {
		return func(f *frame) (v Value) {
			for _, e := range list {
				if v = e(f); v.IsTruthy() == truth {
					break
				}
			}
			return v
		}
	}
}

func (p *parser) not() expr {
	if !p.take("not") {
		return p.compare()
	}
	defer p.nested()()
	e := p.not()
	return func(f *frame) Value { return NewBool(!e(f).IsTruthy()) }
}

// relation is a comparison of two values.
type relation func(r *run, x, y Value) bool

var comparisons = map[string]relation{
	"==": eq, "!=": ne, "<": order("<"), "<=": order("<="), ">": order(">"), ">=": order(">="), "in": in,
}

// compare reads a comparison or a chain of them: a < b < c is a < b and b < c.
func (p *parser) compare() expr {
	type part struct {
		holds relation
		want  bool
		right expr
	}
	left := p.sum()
	var parts []part
	for {
		l := part{want: true}
		switch t := p.peek(); {
		case t.kind == kindOp || t.kind == kindName && t.val == "in":
			l.holds = comparisons[t.val]
		case p.is("not") && p.toks[p.pos+1].val == "in":
			p.pos++
			l.holds, l.want = in, false
		}
		if l.holds == nil {
			break
		}
		p.pos++
		l.right = p.sum()
		if parts = append(parts, l); len(parts) > maxChain {
			panic(p.fail(p.peek(), "expression too long"))
		}
	}
	if parts == nil {
		return left
	}
	return func(f *frame) Value {
		x := left(f)
		for _, l := range parts {
			y := l.right(f)
			f.spend(1 + weight(x) + weight(y))
			if l.holds(f.run, x, y) != l.want {
				return NewBool(false)
			}
			x = y
		}
		return NewBool(true)
	}
}

// binary is an operation on two values.
type binary func(r *run, x, y Value) Value

func (op binary) with(right expr) link {
	return func(f *frame, x Value) Value {
		y := right(f)
		f.spend(1 + weight(x) + weight(y))
		v := op(f.run, x, y)
		f.spend(weight(v))
		return v
	}
}

// chain reads operands joined by left-associative operators.
func (p *parser) chain(ops map[string]binary, operand func() expr) expr {
	left := operand()
	var links []link
	for range maxNesting {
		t := p.peek()
		op := ops[t.val]
		if t.kind != kindOp || op == nil {
			return left.then(links)
		}
		p.pos++
		links = append(links, op.with(operand()))
	}
	panic(p.fail(p.peek(), "expression too long"))
}

var (
	sumOps     = map[string]binary{"+": add, "-": sub}
	productOps = map[string]binary{"*": mul, "/": div, "//": floordiv, "%": mod}
	powerOps   = map[string]binary{"**": pow}
	signs      = map[string]binary{"-": neg, "+": pos} // of the second value
)

func (p *parser) sum() expr     { return p.chain(sumOps, p.concat) }
func (p *parser) product() expr { return p.chain(productOps, p.power) }
func (p *parser) power() expr   { return p.chain(powerOps, func() expr { return p.unary(true) }) }

func (p *parser) concat() expr {
	return p.several("~", p.product, func(list []expr) expr {
		return func(f *frame) Value { return f.apply(concat, args{pos: f.all(list)}) }
	})
}

func (p *parser) unary(filters bool) expr {
	defer p.nested()()
	start := p.peek()
	var e expr
	if sign := signs[start.val]; start.kind == kindOp && sign != nil {
		p.next()
		e = constant(Value{}).then([]link{sign.with(p.unary(false))})
	} else {
		e = p.postfix(p.primary(), start)
	}
	if filters {
		e = p.filters(e)
	}
	return e
}

var constants = map[string]Value{
	"true": {true}, "True": {true}, "false": {false}, "False": {false}, "none": {none{}}, "None": {none{}},
}

func isKeyword(s string) bool {
	switch s {
	case "if", "else", "elif", "and", "or", "not", "in", "is", "recursive":
		return true
	}
	return false
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case kindName:
		if c, ok := constants[t.val]; ok {
			return constant(c)
		}
		if isKeyword(t.val) {
			break
		}
		switch t.val {
		case "caller", "kwargs", "varargs":
			p.special[t.val] = true
		}
		id := p.ident(t.val)
		return func(f *frame) Value {
			f.steps--
			return f.get(id)
		}
	case kindString:
		val := t.val
		for p.peek().kind == kindString {
			val += p.next().val
		}
		if len(val) <= maxName {
			p.names[val] = true // a subscript or an argument of get
		}
		return constant(NewString(val))
	case kindInt:
		return constant(p.integer(t))
	case kindFloat:
		x, err := strconv.ParseFloat(strings.ReplaceAll(t.val, "_", ""), 64)
		if err != nil {
			panic(p.fail(t, "bad number %q", t.val))
		}
		return constant(NewFloat(x))
	case kindOp:
		switch t.val {
		case "(":
			return p.paren()
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	panic(p.fail(t, "unexpected %q", t.val))
}

func (p *parser) integer(t token) Value {
	n, err := strconv.ParseInt(t.val, 0, 64)
	if err != nil {
		panic(p.fail(t, "bad or too large integer %q", t.val))
	}
	return NewInt(n)
}

func (p *parser) paren() expr {
	if p.take(")") {
		return constant(newTuple())
	}
	defer p.nested()()
	e := p.tuple(true)
	p.expect(")")
	return e
}

func (p *parser) list() expr {
	var list []expr
	for p.more(list == nil, "]") {
		list = append(list, p.expr())
	}
	return func(f *frame) Value { return NewList(f.all(list)) }
}

func (p *parser) dict() expr {
	var keys, values []expr
	for p.more(keys == nil, "}") {
		keys = append(keys, p.expr())
		p.expect(":")
		values = append(values, p.expr())
	}
	return func(f *frame) Value {
		d := NewDict()
		for i := range keys {
			k := plain(f.printed(keys[i](f))) // keys are plain text
			d.AsDict().Set(k, values[i](f))
		}
		f.spend(len(keys) / 16)
		return d
	}
}
