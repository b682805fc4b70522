package template

// callSite is a call in the source.
type callSite struct {
	args   []argument
	end    int    // token after it
	caller *macro // the body of the call block that it belongs to; nil: none
}

// argument is one argument of a call.
type argument struct {
	name  string // of a named one
	stars int    // in front of it
	value expr
}

// postfix reads what follows a primary: attributes, subscripts, calls. start is the token where the
// primary began, for the words of errors.
func (p *parser) postfix(e expr, start token) expr {
	var links []link
	for range maxNesting {
		src := p.between(start)
		switch {
		case p.take("."):
			links = append(links, p.dot(src))
		case p.take("["):
			links = append(links, p.subscript(src))
		case p.take("("):
			links = append(links, p.invoke(src))
		default:
			return e.then(links)
		}
	}
	panic(p.fail(p.peek(), "expression too long"))
}

// invoke reads the arguments of a call after the opening parenthesis.
func (p *parser) invoke(src string) link {
	site := p.call()
	return func(f *frame, v Value) Value { return f.called(v, src, f.arguments(site)) }
}

// called calls v, whose source text is src.
func (r *run) called(v Value, src string, a args) Value {
	switch c := v.v.(type) {
	case *callable:
		return r.apply(c.call, a)
	case *loop:
		return r.apply(c.again, a)
	case nil:
		panic(faultf("'%s' is undefined", src))
	}
	panic(faultf("'%s' object is not callable", typeName(v)))
}

func (p *parser) dot(src string) link {
	t := p.next()
	if t.kind == kindInt {
		return item(constant(p.integer(t)), src)
	}
	if t.kind != kindName {
		panic(p.fail(t, "expected an attribute, found %q", t.val))
	}
	name := t.val
	p.names[name] = true
	if !p.take("(") {
		return func(f *frame, v Value) Value {
			f.steps--
			return attribute(f.run, v, name, src)
		}
	}
	site := p.call()
	return func(f *frame, v Value) Value {
		m := attribute(f.run, v, name, src)
		if m.IsUndefined() {
			panic(faultf("'%s' has no attribute '%s'", describe(v), name))
		}
		f.spend(weight(v))
		return f.called(m, src, f.arguments(site))
	}
}

// item is v[key].
func item(key expr, src string) link {
	return func(f *frame, v Value) Value {
		k := key(f)
		f.spend(1 + weight(v))
		return subscript(f.run, v, k, src)
	}
}

func (p *parser) subscript(src string) link {
	defer p.nested()()
	if p.is("]") {
		panic(p.fail(p.peek(), "expected a subscript"))
	}
	var parts []expr
	for len(parts) < 3 {
		part := constant(None())
		if !p.is(":") && !p.is("]") {
			part = p.expr()
		}
		if parts = append(parts, part); !p.take(":") {
			break
		}
	}
	p.expect("]")
	if len(parts) == 1 {
		return item(parts[0], src)
	}
	return func(f *frame, v Value) Value {
		bounds := f.all(parts)
		f.spend(1 + weight(v))
		return slice(f.run, v, src, bounds)
	}
}

// call reads the arguments of a call after the opening parenthesis.
func (p *parser) call() *callSite {
	defer p.nested()()
	site := new(callSite)
	named := false
	for p.more(site.args == nil, ")") {
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
			panic(p.fail(t, "positional argument follows keyword argument"))
		}
		named = named || arg.stars == 2 || arg.name != ""
		arg.value = p.expr()
		site.args = append(site.args, arg)
	}
	site.end, p.site = p.pos, site
	return site
}

// arguments evaluates the arguments of a call; first come before them.
func (f *frame) arguments(site *callSite, first ...Value) args {
	a := args{pos: first}
	set := func(name string, v Value) {
		if a.kw == nil {
			a.kw = &Dict{Data: map[string]Value{}}
		}
		a.kw.Set(name, v)
	}
	for _, arg := range site.args {
		v := arg.value(f)
		switch {
		case arg.stars == 1:
			a.pos = append(a.pos, iterable(f.run, v)...)
		case arg.stars == 2:
			if !v.IsDict() {
				panic(faultf("argument after ** must be a mapping, not %s", typeName(v)))
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
	return a
}

// filters reads the filters and tests after an expression.
func (p *parser) filters(e expr) expr {
	var links []link
	for n := range maxNesting {
		start := p.peek()
		switch {
		case p.take("|"):
			links = append(links, p.filter())
		case p.take("is"):
			links = append(links, p.test())
		case n > 0 && p.take("("):
			links = append(links, p.invoke(p.between(start)))
		default:
			return e.then(links)
		}
	}
	panic(p.fail(p.peek(), "expression too long"))
}

// filter reads one filter after its bar.
func (p *parser) filter() link {
	name := p.expectKind(kindName, "a filter").val
	site := new(callSite)
	if p.take("(") {
		site = p.call()
	}
	return applied("filter", name, filters[name], site)
}

// test reads one test after "is".
func (p *parser) test() link {
	negated := p.take("not")
	name := p.expectKind(kindName, "a test").val
	site := new(callSite)
	switch k := p.peek(); {
	case p.take("("):
		site = p.call()
	case k.kind == kindString, k.kind == kindInt, k.kind == kindFloat, p.is("["), p.is("{"),
		k.kind == kindName && !p.is("else") && !p.is("or") && !p.is("and"):
		if p.is("is") {
			panic(p.fail(k, "you cannot chain multiple tests with is"))
		}
		site.args = []argument{{value: p.postfix(p.primary(), k)}}
	}
	var fn function
	if check := tests[name]; check != nil {
		fn = func(r *run, a args) Value { return NewBool(check(r, a) != negated) }
	}
	return applied("test", name, fn, site)
}

// applied returns a filter or a test. A missing one raises when it is evaluated, because it may be
// in a branch that is not taken.
func applied(what, name string, fn function, site *callSite) link {
	return func(f *frame, v Value) Value {
		if fn == nil {
			panic(faultf("no %s named %q", what, name))
		}
		return f.apply(fn, f.arguments(site, v))
	}
}
