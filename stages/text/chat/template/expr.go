package template

import (
	"strconv"
	"strings"
)

// between is the source from token start to the last token taken.
func (p *parser) between(start token) string {
	s := p.src[start.from:p.toks[p.pos-1].to]
	if len(s) > 80 {
		s = s[:strings.LastIndexAny(s[:80], " .[(")+1] + "..."
	}
	return strings.ToValidUTF8(s, "")
}

// all evaluates expressions from left to right.
func (f *frame) all(list []expr) ([]Value, error) {
	out := make([]Value, len(list))
	for i, e := range list {
		v, err := e(f)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, f.spend(len(list) / 16)
}

// several reads operands joined by an operator that takes any number of them;
// one operand stays as it is.
func (p *parser) several(op string, operand func() (expr, error), join func(list []expr) expr) (expr, error) {
	e, err := operand()
	if err != nil || !p.is(op) {
		return e, err
	}
	list := []expr{e}
	for p.take(op) {
		if e, err = operand(); err != nil {
			return nil, err
		}
		if list = append(list, e); len(list) > maxChain {
			return nil, p.fail(p.peek(), "expression too long")
		}
	}
	return join(list), nil
}

// tuple reads an expression, or several with commas between; cond allows the
// inline if.
func (p *parser) tuple(cond bool) (expr, error) {
	one := p.or
	if cond {
		one = p.expr
	}
	e, err := one()
	if err != nil || !p.is(",") {
		return e, err
	}
	list := []expr{e}
	for p.take(",") {
		k := p.peek().kind
		if k == kindVarShut || k == kindBlockShut || p.is(")") || p.is("in") {
			break
		}
		if e, err = one(); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return func(f *frame) (Value, error) {
		items, err := f.all(list)
		return newTuple(items...), err
	}, nil
}

// expr reads an expression with the inline if.
func (p *parser) expr() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	e, err := p.or()
	for err == nil && p.take("if") {
		var cond expr
		other := constant(Value{})
		if cond, err = p.or(); err == nil && p.take("else") {
			other, err = p.expr()
		}
		e = choice(cond, e, other)
	}
	return e, err
}

func choice(cond, yes, no expr) expr {
	return func(f *frame) (Value, error) {
		v, err := cond(f)
		if err != nil {
			return Value{}, err
		}
		if v.IsTruthy() {
			return yes(f)
		}
		return no(f)
	}
}

func constant(v Value) expr {
	return func(f *frame) (Value, error) {
		f.steps--
		return v, nil
	}
}

func (p *parser) or() (expr, error)  { return p.several("or", p.and, shortCircuit(true)) }
func (p *parser) and() (expr, error) { return p.several("and", p.not, shortCircuit(false)) }

// shortCircuit is the first of some values whose truth is the one given, or the
// last.
func shortCircuit(truth bool) func([]expr) expr {
	return func(list []expr) expr {
		return func(f *frame) (v Value, err error) {
			for _, e := range list {
				if v, err = e(f); err != nil || v.IsTruthy() == truth {
					break
				}
			}
			return v, err
		}
	}
}

func (p *parser) not() (expr, error) {
	if !p.take("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	e, err := p.not()
	return not(e), err
}

func not(e expr) expr {
	return func(f *frame) (Value, error) {
		v, err := e(f)
		return NewBool(!v.IsTruthy()), err
	}
}

// relation is a comparison of two values.
type relation func(r *run, x, y Value) (bool, error)

var comparisons = map[string]relation{
	"==": eq, "!=": ne, "<": order("<"), "<=": order("<="), ">": order(">"), ">=": order(">="), "in": in,
}

// compare reads a comparison or a chain of them: a < b < c is a < b and b < c.
func (p *parser) compare() (expr, error) {
	type link struct {
		holds relation
		want  bool
		right expr
	}
	left, err := p.sum()
	if err != nil {
		return nil, err
	}
	var links []link
	for {
		l := link{want: true}
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
		if l.right, err = p.sum(); err != nil {
			return nil, err
		}
		if links = append(links, l); len(links) > maxChain {
			return nil, p.fail(p.peek(), "expression too long")
		}
	}
	if links == nil {
		return left, nil
	}
	return func(f *frame) (Value, error) {
		x, err := left(f)
		for _, l := range links {
			if err != nil {
				return Value{}, err
			}
			y, err := l.right(f)
			if err != nil {
				return Value{}, err
			}
			if err := f.spend(1 + weight(x) + weight(y)); err != nil {
				return Value{}, err
			}
			ok, err := l.holds(f.run, x, y)
			if err != nil || ok != l.want {
				return NewBool(false), err
			}
			x = y
		}
		return NewBool(true), f.spend(0)
	}, nil
}

// binary is an operation on two values.
type binary func(r *run, x, y Value) (Value, error)

func (op binary) of(left, right expr) expr {
	return func(f *frame) (Value, error) {
		x, err := left(f)
		if err != nil {
			return Value{}, err
		}
		y, err := right(f)
		if err != nil {
			return Value{}, err
		}
		if err := f.spend(1 + weight(x) + weight(y)); err != nil {
			return Value{}, err
		}
		v, err := op(f.run, x, y)
		if err != nil {
			return Value{}, err
		}
		return v, f.spend(weight(v))
	}
}

// chain reads operands joined by left-associative operators.
func (p *parser) chain(ops map[string]binary, operand func() (expr, error)) (expr, error) {
	left, err := operand()
	for n := 0; err == nil; n++ {
		t := p.peek()
		op := ops[t.val]
		if t.kind != kindOp || op == nil {
			return left, nil
		}
		if n == maxNesting {
			return nil, p.fail(t, "expression too long")
		}
		p.pos++
		var right expr
		if right, err = operand(); err == nil {
			left = op.of(left, right)
		}
	}
	return nil, err
}

var (
	sumOps     = map[string]binary{"+": add, "-": sub}
	productOps = map[string]binary{"*": mul, "/": div, "//": floordiv, "%": mod}
	powerOps   = map[string]binary{"**": pow}
	signs      = map[string]binary{"-": neg, "+": pos} // of the second value
)

func (p *parser) sum() (expr, error) { return p.chain(sumOps, p.concat) }

func (p *parser) concat() (expr, error) {
	return p.several("~", p.product, func(list []expr) expr {
		return func(f *frame) (Value, error) {
			items, err := f.all(list)
			if err != nil {
				return Value{}, err
			}
			return f.apply(concat, args{pos: items})
		}
	})
}

func (p *parser) product() (expr, error) { return p.chain(productOps, p.power) }
func (p *parser) power() (expr, error) {
	return p.chain(powerOps, func() (expr, error) { return p.unary(true) })
}

func (p *parser) unary(filters bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	start := p.peek()
	var e expr
	var err error
	if sign := signs[start.val]; start.kind == kindOp && sign != nil {
		p.next()
		if e, err = p.unary(false); err == nil {
			e = sign.of(constant(NewInt(0)), e)
		}
	} else if e, err = p.primary(); err == nil {
		e, err = p.postfix(e, start)
	}
	if err != nil || !filters {
		return e, err
	}
	return p.filters(e)
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

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case kindName:
		if c, ok := constants[t.val]; ok {
			return constant(c), nil
		}
		if isKeyword(t.val) {
			return nil, p.fail(t, "unexpected %q", t.val)
		}
		switch t.val {
		case "caller", "kwargs", "varargs":
			p.special[t.val] = true
		}
		id := p.ident(t.val)
		return func(f *frame) (Value, error) {
			f.steps--
			return f.get(id), nil
		}, nil
	case kindString:
		val := t.val
		for p.peek().kind == kindString {
			val += p.next().val
		}
		if len(val) <= maxName {
			p.names[val] = true // a subscript or an argument of get
		}
		return constant(NewString(val)), nil
	case kindInt:
		n, err := p.integer(t)
		return constant(NewInt(n)), err
	case kindFloat:
		x, err := strconv.ParseFloat(strings.ReplaceAll(t.val, "_", ""), 64)
		if err != nil {
			return nil, p.fail(t, "bad number %q", t.val)
		}
		return constant(NewFloat(x)), nil
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
	return nil, p.fail(t, "unexpected %q", t.val)
}

func (p *parser) integer(t token) (int64, error) {
	n, err := strconv.ParseInt(t.val, 0, 64)
	if err != nil {
		return 0, p.fail(t, "bad or too large integer %q", t.val)
	}
	return n, nil
}

func (p *parser) paren() (expr, error) {
	if p.take(")") {
		return constant(newTuple()), nil
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	e, err := p.tuple(true)
	if err != nil {
		return nil, err
	}
	return e, p.expect(")")
}

func (p *parser) list() (expr, error) {
	var list []expr
	for !p.take("]") {
		e, err := p.expr()
		if err != nil {
			return nil, err
		}
		list = append(list, e)
		if !p.take(",") && !p.is("]") {
			return nil, p.expect("]")
		}
	}
	return func(f *frame) (Value, error) {
		items, err := f.all(list)
		return NewList(items), err
	}, nil
}

func (p *parser) dict() (expr, error) {
	var keys, values []expr
	for !p.take("}") {
		k, err := p.expr()
		if err == nil {
			err = p.expect(":")
		}
		if err != nil {
			return nil, err
		}
		v, err := p.expr()
		if err != nil {
			return nil, err
		}
		keys, values = append(keys, k), append(values, v)
		if !p.take(",") && !p.is("}") {
			return nil, p.expect("}")
		}
	}
	return func(f *frame) (Value, error) {
		d := NewDict()
		for i := range keys {
			k, err := keys[i](f)
			if err != nil {
				return Value{}, err
			}
			v, err := values[i](f)
			if err != nil {
				return Value{}, err
			}
			// Keys are plain text.
			d.AsDict().Set(plain(f.printed(k)), v)
		}
		return d, f.spend(len(keys) / 16)
	}, nil
}
