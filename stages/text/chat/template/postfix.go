package template

import "strings"

// postfix reads what follows a primary: attributes, subscripts, calls. start is
// the token where the primary began, for the words of errors.
func (p *parser) postfix(e string, start token) (string, error) {
	for n := 0; ; n++ {
		if n == maxNesting {
			return "", p.fail(p.peek(), "expression too long")
		}
		src := quote(p.between(start))
		var err error
		switch {
		case p.take("."):
			e, err = p.dot(e, src)
		case p.take("["):
			e, err = p.subscript(e, src)
		case p.take("("):
			var args []string
			if args, err = p.args(); err == nil {
				e = p.invoke(e, src, args)
			}
		default:
			return e, nil
		}
		if err != nil {
			return "", err
		}
	}
}

// invoke writes the call of a value.
func (p *parser) invoke(e, src string, args []string) string {
	return p.call("fn", e, src) + "(" + strings.Join(args, ", ") + ")"
}

func (p *parser) dot(e, src string) (string, error) {
	t := p.next()
	switch {
	case t.kind == kindInt:
		n, err := p.integer(t)
		return p.call("item", e, n, src), err
	case t.kind != kindName:
		return "", p.fail(t, "expected an attribute, found %q", t.val)
	}
	p.names[t.val] = true
	if !p.take("(") {
		return p.call("attr", e, quote(t.val), src), nil
	}
	args, err := p.args()
	if err != nil {
		return "", err
	}
	return p.call("method", append([]string{e, quote(t.val), src}, args...)...), nil
}

func (p *parser) subscript(e, src string) (string, error) {
	if err := p.enter(); err != nil {
		return "", err
	}
	defer p.leave()
	var parts []string
	slice := false
	bound := func() error {
		if p.is(":") || p.is("]") {
			parts = append(parts, "none")
			return nil
		}
		b, err := p.expr()
		parts = append(parts, b)
		return err
	}
	if p.is("]") {
		return "", p.fail(p.peek(), "expected a subscript")
	}
	for {
		if err := bound(); err != nil {
			return "", err
		}
		if len(parts) == 3 || !p.take(":") {
			break
		}
		slice = true
	}
	if err := p.expect("]"); err != nil {
		return "", err
	}
	if !slice {
		return p.call("item", e, parts[0], src), nil
	}
	for len(parts) < 3 {
		parts = append(parts, "none")
	}
	return p.call("slice", e, src, parts[0], parts[1], parts[2]), nil
}

// args reads call arguments behind the opening parenthesis.
func (p *parser) args() ([]string, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out []string
	named := false
	for !p.take(")") {
		var arg string
		var err error
		switch t := p.peek(); {
		case p.is("*"):
			return nil, p.fail(t, "argument lists (*args) are not supported")
		case p.take("**"):
			named = true
			arg, err = p.expr()
			arg = "**" + p.call("keywords", arg)
		case t.kind == kindName && p.toks[p.pos+1].kind == kindOp && p.toks[p.pos+1].val == "=":
			p.pos += 2
			named = true
			arg, err = p.expr()
			arg = p.ident(t.val) + "=" + arg
		case named:
			return nil, p.fail(t, "positional argument behind a named one")
		default:
			arg, err = p.expr()
		}
		if err != nil {
			return nil, err
		}
		out = append(out, arg)
		if !p.take(",") && !p.is(")") {
			return nil, p.expect(")")
		}
	}
	return out, nil
}

// filters reads the filters and tests behind an expression.
func (p *parser) filters(e string) (string, error) {
	for n := 0; n < maxNesting; n++ {
		var err error
		start := p.peek()
		switch {
		case p.is("|"):
			e, err = p.filter(e)
		case p.take("is"):
			e, err = p.test(e)
		case n > 0 && p.take("("):
			var args []string
			if args, err = p.args(); err == nil {
				e = p.invoke(e, quote(p.between(start)), args)
			}
		default:
			return e, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", p.fail(p.peek(), "expression too long")
}

// filter reads one filter, with its bar where there is one.
func (p *parser) filter(e string) (string, error) {
	p.take("|")
	t, err := p.expectKind(kindName, "a filter")
	if err != nil {
		return "", err
	}
	args := []string{e}
	if p.take("(") {
		more, err := p.args()
		if err != nil {
			return "", err
		}
		args = append(args, more...)
	}
	if filters[t.val] == nil {
		return p.call("unknown", quote("filter"), quote(t.val)), nil
	}
	return p.call("f_"+t.val, args...), nil
}

// test reads one test behind "is".
func (p *parser) test(e string) (string, error) {
	negated := p.take("not")
	t, err := p.expectKind(kindName, "a test")
	if err != nil {
		return "", err
	}
	args := []string{e}
	switch k := p.peek(); {
	case p.take("("):
		more, err := p.args()
		if err != nil {
			return "", err
		}
		args = append(args, more...)
	case k.kind == kindString, k.kind == kindInt, k.kind == kindFloat, p.is("["), p.is("{"),
		k.kind == kindName && !p.is("else") && !p.is("or") && !p.is("and"):
		if p.is("is") {
			return "", p.fail(k, "you cannot chain multiple tests with is")
		}
		arg, err := p.primary()
		if err == nil {
			arg, err = p.postfix(arg, k)
		}
		if err != nil {
			return "", err
		}
		args = append(args, arg)
	}
	if tests[t.val] == nil {
		e = p.call("unknown", quote("test"), quote(t.val))
	} else {
		e = p.call("t_"+t.val, args...)
	}
	if negated {
		e = "(not " + e + ")"
	}
	return e, nil
}
