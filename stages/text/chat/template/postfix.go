package template

// callSite is a call in the source.
type callSite struct {
	args   []argument
	end    int    // the token behind it
	caller *macro // the body of the call block that it belongs to; nil: none
}

// argument is one argument of a call.
type argument struct {
	name  string // of a named one
	stars int    // in front of it
	value expr
}

// postfix reads what follows a primary: attributes, subscripts, calls. start is
// the token where the primary began, for the words of errors.
func (p *parser) postfix(e expr, start token) (expr, error) {
	for n := 0; ; n++ {
		if n == maxNesting {
			return nil, p.fail(p.peek(), "expression too long")
		}
		src := p.between(start)
		var err error
		switch {
		case p.take("."):
			e, err = p.dot(e, src)
		case p.take("["):
			e, err = p.subscript(e, src)
		case p.take("("):
			e, err = p.invoke(e, src)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// invoke reads the arguments of a call behind the opening parenthesis.
func (p *parser) invoke(e expr, src string) (expr, error) {
	site, err := p.call()
	return func(f *frame) (Value, error) {
		fn, err := e(f)
		if err != nil {
			return Value{}, err
		}
		a, err := f.arguments(site)
		if err != nil {
			return Value{}, err
		}
		return f.called(fn, src, a)
	}, err
}

// called calls v, which stands in the source as src.
func (r *run) called(v Value, src string, a args) (Value, error) {
	switch c := v.v.(type) {
	case *callable:
		return r.apply(c.call, a)
	case *loop:
		return r.apply(c.again, a)
	case nil:
		return Value{}, faultf("'%s' is undefined", src)
	}
	return Value{}, faultf("'%s' object is not callable", typeName(v))
}

func (p *parser) dot(e expr, src string) (expr, error) {
	t := p.next()
	switch {
	case t.kind == kindInt:
		n, err := p.integer(t)
		return item(e, constant(NewInt(n)), src), err
	case t.kind != kindName:
		return nil, p.fail(t, "expected an attribute, found %q", t.val)
	}
	name := t.val
	p.names[name] = true
	if !p.take("(") {
		return func(f *frame) (Value, error) {
			v, err := e(f)
			if err != nil {
				return Value{}, err
			}
			f.steps--
			return attribute(f.run, v, name, src)
		}, nil
	}
	site, err := p.call()
	return func(f *frame) (Value, error) {
		v, err := e(f)
		if err != nil {
			return Value{}, err
		}
		m, err := attribute(f.run, v, name, src)
		if err != nil {
			return Value{}, err
		}
		if m.IsUndefined() {
			return Value{}, faultf("'%s' has no attribute '%s'", describe(v), name)
		}
		a, err := f.arguments(site)
		if err != nil {
			return Value{}, err
		}
		if err := f.spend(weight(v)); err != nil {
			return Value{}, err
		}
		return f.called(m, src, a)
	}, err
}

// item is v[key].
func item(e, key expr, src string) expr {
	return func(f *frame) (Value, error) {
		v, err := e(f)
		if err != nil {
			return Value{}, err
		}
		k, err := key(f)
		if err != nil {
			return Value{}, err
		}
		if err := f.spend(1 + weight(v)); err != nil {
			return Value{}, err
		}
		return subscript(f.run, v, k, src)
	}
}

func (p *parser) subscript(e expr, src string) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	if p.is("]") {
		return nil, p.fail(p.peek(), "expected a subscript")
	}
	var parts []expr
	for len(parts) < 3 {
		part := constant(None())
		if !p.is(":") && !p.is("]") {
			var err error
			if part, err = p.expr(); err != nil {
				return nil, err
			}
		}
		if parts = append(parts, part); !p.take(":") {
			break
		}
	}
	if len(parts) == 1 {
		return item(e, parts[0], src), p.expect("]")
	}
	return func(f *frame) (Value, error) {
		v, err := e(f)
		if err != nil {
			return Value{}, err
		}
		bounds, err := f.all(parts)
		if err != nil {
			return Value{}, err
		}
		if err := f.spend(1 + weight(v)); err != nil {
			return Value{}, err
		}
		return slice(f.run, v, src, bounds)
	}, p.expect("]")
}

// call reads the arguments of a call behind the opening parenthesis.
func (p *parser) call() (*callSite, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	site := new(callSite)
	named := false
	for !p.take(")") {
		var arg argument
		switch t := p.peek(); {
		case p.take("*"):
			arg.stars = 1
		case p.take("**"):
			arg.stars = 2
		case t.kind == kindName && p.toks[p.pos+1].kind == kindOp && p.toks[p.pos+1].val == "=":
			p.pos += 2
			p.names[t.val] = true
			arg.name = t.val
		case named:
			return nil, p.fail(t, "positional argument behind a named one")
		}
		named = named || arg.stars == 2 || arg.name != ""
		var err error
		if arg.value, err = p.expr(); err != nil {
			return nil, err
		}
		site.args = append(site.args, arg)
		if !p.take(",") && !p.is(")") {
			return nil, p.expect(")")
		}
	}
	site.end, p.site = p.pos, site
	return site, nil
}

// arguments evaluates the arguments of a call; first come before them.
func (f *frame) arguments(site *callSite, first ...Value) (args, error) {
	a := args{pos: first}
	set := func(name string, v Value) {
		if a.kw == nil {
			a.kw = &Dict{Data: map[string]Value{}}
		}
		a.kw.Set(name, v)
	}
	for _, arg := range site.args {
		v, err := arg.value(f)
		if err != nil {
			return a, err
		}
		switch {
		case arg.stars == 1:
			list, err := iterable(f.run, v)
			if err != nil {
				return a, err
			}
			a.pos = append(a.pos, list...)
		case arg.stars == 2:
			if !v.IsDict() {
				return a, faultf("argument after ** must be a mapping, not %s", typeName(v))
			}
			for _, k := range v.AsDict().Keys {
				set(k, v.AsDict().Data[k])
			}
		case arg.name != "":
			set(arg.name, v)
		default:
			a.pos = append(a.pos, v)
		}
	}
	if site.caller != nil {
		set("caller", site.caller.in(f))
	}
	return a, nil
}

// filters reads the filters and tests behind an expression.
func (p *parser) filters(e expr) (expr, error) {
	for n := 0; n < maxNesting; n++ {
		var err error
		start := p.peek()
		switch {
		case p.is("|"):
			e, err = p.filter(e)
		case p.take("is"):
			e, err = p.test(e)
		case n > 0 && p.take("("):
			e, err = p.invoke(e, p.between(start))
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, p.fail(p.peek(), "expression too long")
}

// applied is f of the value of e and the arguments of the site.
func applied(f function, e expr, site *callSite) expr {
	return func(fr *frame) (Value, error) {
		v, err := e(fr)
		if err != nil {
			return Value{}, err
		}
		a, err := fr.arguments(site, v)
		if err != nil {
			return Value{}, err
		}
		return fr.apply(f, a)
	}
}

// unknown raises when it is evaluated: a template may ask for a filter or a test
// that is not there in a branch that it does not take.
func unknown(what, name string) expr {
	return func(*frame) (Value, error) { return Value{}, faultf("no %s named %q", what, name) }
}

// filter reads one filter, with its bar where there is one.
func (p *parser) filter(e expr) (expr, error) {
	p.take("|")
	t, err := p.expectKind(kindName, "a filter")
	if err != nil {
		return nil, err
	}
	site := new(callSite)
	if p.take("(") {
		if site, err = p.call(); err != nil {
			return nil, err
		}
	}
	if filters[t.val] == nil {
		return unknown("filter", t.val), nil
	}
	return applied(filters[t.val], e, site), nil
}

// test reads one test behind "is".
func (p *parser) test(e expr) (expr, error) {
	negated := p.take("not")
	t, err := p.expectKind(kindName, "a test")
	if err != nil {
		return nil, err
	}
	site := new(callSite)
	switch k := p.peek(); {
	case p.take("("):
		if site, err = p.call(); err != nil {
			return nil, err
		}
	case k.kind == kindString, k.kind == kindInt, k.kind == kindFloat, p.is("["), p.is("{"),
		k.kind == kindName && !p.is("else") && !p.is("or") && !p.is("and"):
		if p.is("is") {
			return nil, p.fail(k, "you cannot chain multiple tests with is")
		}
		arg, err := p.primary()
		if err == nil {
			arg, err = p.postfix(arg, k)
		}
		if err != nil {
			return nil, err
		}
		site.args = []argument{{value: arg}}
	}
	check := tests[t.val]
	if check == nil {
		return unknown("test", t.val), nil
	}
	return applied(func(r *run, a args) (Value, error) {
		ok, err := check(r, a)
		return NewBool(ok != negated), err
	}, e, site), nil
}
