package template

func (p *parser) ifBlock() stmt {
	type branch struct {
		cond expr // nil: else
		body block
	}
	var branches []branch
	end := "elif"
	for end != "endif" {
		var b branch
		stop := []string{"elif", "else", "endif"}
		if end == "elif" {
			b.cond = p.tuple(false)
		} else {
			stop = stop[2:]
		}
		p.shut()
		b.body, end = p.body(stop...)
		branches = append(branches, b)
	}
	p.shut()
	return func(f *frame) signal {
		for _, b := range branches {
			if b.cond == nil || b.cond(f).IsTruthy() {
				return b.body.run(f)
			}
		}
		return onward
	}
}

// target is the left side of an assignment.
type target func(f *frame, v Value)

// target reads the left side of "in" or "=": one name, or several that are unpacked. attr allows
// attributes of namespaces.
func (p *parser) target(attr bool) target {
	one := p.targetName(attr)
	if !p.is(",") {
		return one
	}
	list := []target{one}
	for p.take(",") {
		if p.is("in") || p.is(")") || p.peek().kind == kindBlockShut {
			break
		}
		list = append(list, p.targetName(attr))
	}
	return func(f *frame, v Value) {
		for i, item := range unpack(v, len(list)) {
			list[i](f, item)
		}
	}
}

func (p *parser) targetName(attr bool) target {
	if p.take("(") {
		defer p.nested()()
		t := p.target(attr)
		p.expect(")")
		return t
	}
	t := p.expectKind(kindName, "a name")
	if _, ok := constants[t.val]; ok {
		panic(p.fail(t, "can't assign to %q", t.val))
	}
	id := p.ident(t.val)
	if !attr || !p.take(".") {
		return func(f *frame, v Value) { f.set(id, v) }
	}
	field := p.expectKind(kindName, "an attribute").val
	p.names[field] = true
	return func(f *frame, v Value) {
		space, ok := f.get(id).v.(*namespace)
		if !ok {
			panic(faultf("cannot assign attribute on non-namespace object"))
		}
		space.Set(field, v)
	}
}

func (p *parser) set() stmt {
	to := p.target(true)
	var value expr
	if p.take("=") {
		value = p.tuple(true)
	} else {
		var body block
		value = p.filters(body.text())
		p.shut()
		body, _ = p.body("endset")
	}
	p.shut()
	return func(f *frame) signal {
		to(f, value(f))
		return onward
	}
}

// filterBlock reads {% filter f %}...{% endfilter %}.
func (p *parser) filterBlock() stmt {
	var body block
	value := p.filters(body.text().then([]link{p.filter()}))
	p.shut()
	body, _ = p.body("endfilter")
	p.shut()
	return printing(value)
}

// scoped reads a tag that marks a part of the template and gives it a scope: generation (training
// masks), block (inheritance). A block does not see the enclosing scopes unless it says so.
func (p *parser) scoped(name string) stmt {
	apart := name == "block"
	for p.peek().kind == kindName {
		apart = p.next().val != "scoped" && apart
	}
	p.shut()
	loops := p.loops
	p.loops = 0
	body, _ := p.body("end" + name)
	p.loops = loops
	if name == "block" && p.peek().kind == kindName {
		p.next()
	}
	p.shut()
	return func(f *frame) signal {
		g := f.child()
		if apart {
			g.parent = f.root
		}
		return body.run(g)
	}
}
