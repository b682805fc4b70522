package template

import "slices"

func (p *parser) ifBlock() (stmt, error) {
	type branch struct {
		cond expr // nil: else
		body block
	}
	var branches []branch
	end := "elif"
	for end != "endif" {
		var b branch
		var err error
		stop := []string{"elif", "else", "endif"}
		if end == "elif" {
			if b.cond, err = p.tuple(false); err != nil {
				return nil, err
			}
		} else {
			stop = stop[2:]
		}
		if err := p.shut(); err != nil {
			return nil, err
		}
		if b.body, end, err = p.body(stop...); err != nil {
			return nil, err
		}
		branches = append(branches, b)
	}
	return func(f *frame) error {
		for _, b := range branches {
			if b.cond == nil {
				return b.body.run(f)
			}
			v, err := b.cond(f)
			if err != nil {
				return err
			}
			if v.IsTruthy() {
				return b.body.run(f)
			}
		}
		return nil
	}, p.shut()
}

// target is what a value is assigned to.
type target func(f *frame, v Value) error

// target reads what stands on the left of "in" or "=": one name or several, which
// are unpacked. attr allows attributes of namespaces.
func (p *parser) target(attr bool) (target, error) {
	one, err := p.targetName(attr)
	if err != nil || !p.is(",") {
		return one, err
	}
	list := []target{one}
	for p.take(",") {
		if p.is("in") || p.is(")") || p.peek().kind == kindBlockShut {
			break
		}
		if one, err = p.targetName(attr); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return func(f *frame, v Value) error {
		items, err := unpack(v, len(list))
		for i := 0; err == nil && i < len(list); i++ {
			err = list[i](f, items[i])
		}
		return err
	}, nil
}

func (p *parser) targetName(attr bool) (target, error) {
	if p.take("(") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		t, err := p.target(attr)
		if err != nil {
			return nil, err
		}
		return t, p.expect(")")
	}
	t, err := p.expectKind(kindName, "a name")
	if err != nil {
		return nil, err
	}
	if _, ok := constants[t.val]; ok {
		return nil, p.fail(t, "can't assign to %q", t.val)
	}
	id := p.ident(t.val)
	if !attr || !p.take(".") {
		return func(f *frame, v Value) error {
			f.set(id, v)
			return nil
		}, nil
	}
	field, err := p.expectKind(kindName, "an attribute")
	p.names[field.val] = true
	return func(f *frame, v Value) error {
		space, ok := f.get(id).v.(*namespace)
		if !ok {
			return faultf("cannot assign attribute on non-namespace object")
		}
		space.Set(field.val, v)
		return nil
	}, err
}

func (p *parser) set() (stmt, error) {
	to, err := p.target(true)
	if err != nil {
		return nil, err
	}
	var value expr
	if p.take("=") {
		value, err = p.tuple(true)
	} else {
		var body block
		if value, err = p.filters(func(f *frame) (Value, error) { return body.capture(f) }); err != nil {
			return nil, err
		}
		if err := p.shut(); err != nil {
			return nil, err
		}
		body, _, err = p.body("endset")
	}
	if err != nil {
		return nil, err
	}
	return func(f *frame) error {
		v, err := value(f)
		if err != nil {
			return err
		}
		return to(f, v)
	}, p.shut()
}

// filterBlock reads {% filter f %}...{% endfilter %}.
func (p *parser) filterBlock() (stmt, error) {
	var body block
	value, err := p.filter(func(f *frame) (Value, error) { return body.capture(f) })
	if err == nil {
		value, err = p.filters(value)
	}
	if err != nil {
		return nil, err
	}
	if err := p.shut(); err != nil {
		return nil, err
	}
	if body, _, err = p.body("endfilter"); err != nil {
		return nil, err
	}
	return printing(value), p.shut()
}

// scoped reads a tag that marks a part of the template and gives it a scope:
// generation (training masks), block (inheritance). A block does not see the
// scopes around it unless it says so.
func (p *parser) scoped(name token) (stmt, error) {
	var words []string
	for p.peek().kind == kindName {
		words = append(words, p.next().val)
	}
	if err := p.shut(); err != nil {
		return nil, err
	}
	loops := p.loops
	p.loops = 0
	body, _, err := p.body("end" + name.val)
	p.loops = loops
	if err != nil {
		return nil, err
	}
	block := name.val == "block"
	if block && p.peek().kind == kindName {
		p.next()
	}
	apart := block && !slices.Contains(words, "scoped")
	return func(f *frame) error {
		g := f.child()
		if apart {
			g.parent = f.root
		}
		return body.run(g)
	}, p.shut()
}
