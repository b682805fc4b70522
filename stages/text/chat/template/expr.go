package template

import (
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

// tuple reads an expression, or several with commas between; cond allows the
// inline if.
func (p *parser) tuple(cond bool) (string, error) {
	one := p.or
	if cond {
		one = p.expr
	}
	e, err := one()
	if err != nil || !p.is(",") {
		return e, err
	}
	items := []string{e}
	for p.take(",") {
		k := p.peek().kind
		if k == kindVarShut || k == kindBlockShut || p.is(")") || p.is("in") {
			break
		}
		if e, err = one(); err != nil {
			return "", err
		}
		items = append(items, e)
	}
	return tupleOf(items), nil
}

func tupleOf(items []string) string { return "(" + strings.Join(items, ", ") + ",)" }

// expr reads an expression with the inline if.
func (p *parser) expr() (string, error) {
	if err := p.enter(); err != nil {
		return "", err
	}
	defer p.leave()
	e, err := p.or()
	for err == nil && p.take("if") {
		var cond, other string
		if cond, err = p.or(); err != nil {
			return "", err
		}
		if !p.take("else") {
			e = "(" + e + " if " + cond + ")"
			continue
		}
		if other, err = p.expr(); err == nil {
			e = "(" + e + " if " + cond + " else " + other + ")"
		}
	}
	return e, err
}

func (p *parser) or() (string, error)  { return p.logic("or", p.and) }
func (p *parser) and() (string, error) { return p.logic("and", p.not) }

func (p *parser) logic(op string, operand func() (string, error)) (string, error) {
	e, err := operand()
	if err != nil || !p.is(op) {
		return e, err
	}
	items := []string{e}
	for p.take(op) {
		if e, err = operand(); err != nil {
			return "", err
		}
		if items = append(items, e); len(items) > maxChain {
			return "", p.fail(p.peek(), "expression too long")
		}
	}
	return "(" + strings.Join(items, " "+op+" ") + ")", nil
}

func (p *parser) not() (string, error) {
	if !p.take("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return "", err
	}
	defer p.leave()
	e, err := p.not()
	return "(not " + e + ")", err
}

// maxRepeated bounds an operand inside a chain of comparisons, in bytes.
const maxRepeated = 1000

var comparisons = map[string]string{
	"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "in": "in",
}

// compare reads a comparison or a chain of them: a < b < c is a < b and b < c.
func (p *parser) compare() (string, error) {
	left, err := p.sum()
	if err != nil {
		return "", err
	}
	var parts []string
	for len(parts) < maxChain {
		op, negated := "", false
		switch t := p.peek(); {
		case t.kind == kindOp || t.kind == kindName && t.val == "in":
			op = comparisons[t.val]
		case p.is("not") && p.toks[p.pos+1].val == "in":
			p.pos++
			op, negated = "in", true
		}
		if op == "" {
			break
		}
		p.pos++
		right, err := p.sum()
		if err != nil {
			return "", err
		}
		e := p.call(op, left, right)
		if negated {
			e = "(not " + e + ")"
		}
		if parts = append(parts, e); len(parts) > 1 && len(left) > maxRepeated {
			// A chain writes its inner operands twice; nested, that doubles.
			return "", p.fail(p.peek(), "expression too long")
		}
		left = right
	}
	switch len(parts) {
	case 0:
		return left, nil
	case 1:
		return parts[0], nil
	}
	return "(" + strings.Join(parts, " and ") + ")", nil
}

// chain reads operands joined by left-associative operators.
func (p *parser) chain(ops map[string]string, operand func() (string, error)) (string, error) {
	left, err := operand()
	for n := 0; err == nil; n++ {
		t := p.peek()
		op := ops[t.val]
		if t.kind != kindOp || op == "" {
			return left, nil
		}
		if n == maxNesting {
			return "", p.fail(t, "expression too long")
		}
		p.pos++
		var right string
		if right, err = operand(); err == nil {
			left = p.call(op, left, right)
		}
	}
	return "", err
}

var (
	sumOps     = map[string]string{"+": "add", "-": "sub"}
	productOps = map[string]string{"*": "mul", "/": "div", "//": "floordiv", "%": "mod"}
	powerOps   = map[string]string{"**": "pow"}
)

func (p *parser) sum() (string, error) { return p.chain(sumOps, p.concat) }

func (p *parser) concat() (string, error) {
	e, err := p.product()
	if err != nil || !p.is("~") {
		return e, err
	}
	items := []string{e}
	for p.take("~") {
		if e, err = p.product(); err != nil {
			return "", err
		}
		if items = append(items, e); len(items) > maxChain {
			return "", p.fail(p.peek(), "expression too long")
		}
	}
	return p.call("concat", items...), nil
}

func (p *parser) product() (string, error) { return p.chain(productOps, p.power) }
func (p *parser) power() (string, error) {
	return p.chain(powerOps, func() (string, error) { return p.unary(true) })
}

func (p *parser) unary(filters bool) (string, error) {
	if err := p.enter(); err != nil {
		return "", err
	}
	defer p.leave()
	if p.is("-") || p.is("+") {
		name := map[string]string{"-": "neg", "+": "pos"}[p.next().val]
		e, err := p.unary(false)
		if err != nil {
			return "", err
		}
		e = p.call(name, e)
		if filters {
			return p.filters(e)
		}
		return e, nil
	}
	start := p.peek()
	e, err := p.primary()
	if err != nil {
		return "", err
	}
	if e, err = p.postfix(e, start); err != nil || !filters {
		return e, err
	}
	return p.filters(e)
}
