package template

import "slices"

// macro is a macro, or the body of a call block.
type macro struct {
	name   string
	params []param
	body   block
	// The numbers of the variables that a macro gets beside its parameters, where
	// its body mentions them; -1: it does not.
	caller, kwargs, varargs int
}

type param struct {
	name string
	id   int
	def  expr // nil: none
}

// params reads the parameters of a macro or a caller.
func (p *parser) params() ([]param, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	var out []param
	for !p.take(")") {
		t, err := p.expectKind(kindName, "a parameter")
		if err != nil {
			return nil, err
		}
		one := param{name: t.val, id: p.ident(t.val)}
		if !p.is("=") && t.val == "caller" {
			return nil, p.fail(t, "the parameter caller needs a default")
		}
		if p.take("=") {
			if one.def, err = p.expr(); err != nil {
				return nil, err
			}
		} else if n := len(out); n > 0 && out[n-1].def != nil {
			return nil, p.fail(t, "a parameter without a default behind one with a default")
		}
		out = append(out, one)
		if !p.take(",") && !p.is(")") {
			return nil, p.expect(")")
		}
	}
	return out, nil
}

// macroBody reads the body of a macro up to its end tag.
func (p *parser) macroBody(m *macro, end string) error {
	loops, special := p.loops, p.special
	p.loops, p.special = 0, map[string]bool{}
	var err error
	m.body, _, err = p.body(end)
	for name, id := range map[string]*int{"caller": &m.caller, "kwargs": &m.kwargs, "varargs": &m.varargs} {
		*id = -1
		if p.special[name] && m.param(name) < 0 {
			*id = p.ident(name)
		}
		special[name] = special[name] || p.special[name]
	}
	p.loops, p.special = loops, special
	return err
}

func (p *parser) macro() (stmt, error) {
	name, err := p.expectKind(kindName, "a macro name")
	if err != nil {
		return nil, err
	}
	m := &macro{name: name.val}
	if m.params, err = p.params(); err != nil {
		return nil, err
	}
	if err := p.shut(); err != nil {
		return nil, err
	}
	if err := p.macroBody(m, "endmacro"); err != nil {
		return nil, err
	}
	if p.peek().kind == kindName {
		p.next()
	}
	id := p.ident(name.val)
	return func(f *frame) error {
		f.set(id, m.in(f))
		return nil
	}, p.shut()
}

// callBlock reads a call block: its body is a macro that the called one gets
// under the name caller.
func (p *parser) callBlock() (stmt, error) {
	m := &macro{name: "caller"}
	var err error
	if p.is("(") {
		if m.params, err = p.params(); err != nil {
			return nil, err
		}
	}
	start := p.peek()
	e, err := p.primary()
	if err == nil {
		e, err = p.postfix(e, start)
	}
	if err != nil {
		return nil, err
	}
	site := p.site
	if site == nil || site.end != p.pos {
		return nil, p.fail(start, "expected a macro call")
	}
	site.caller = m
	if err := p.shut(); err != nil {
		return nil, err
	}
	if err := p.macroBody(m, "endcall"); err != nil {
		return nil, err
	}
	return printing(e), p.shut()
}

// in is the macro as a value of the scope that it stands in.
func (m *macro) in(f *frame) Value {
	return Value{&callable{m.name, func(_ *run, a args) (Value, error) { return m.call(f, a) }}}
}

// param is the position of a parameter; -1: there is none of this name.
func (m *macro) param(name string) int {
	return slices.IndexFunc(m.params, func(p param) bool { return p.name == name })
}

func (m *macro) call(scope *frame, a args) (Value, error) {
	defer func() { scope.depth-- }()
	if err := scope.deeper(); err != nil {
		return Value{}, err
	}
	f := scope.buffered()
	f.vars = make([]variable, 0, len(m.params)+3)
	for i, p := range m.params {
		v, given := a.at(i, p.name)
		if !given && p.def != nil {
			var err error
			if v, err = p.def(f); err != nil {
				return Value{}, err
			}
		}
		f.set(p.id, v)
	}
	if err := m.extra(f, a); err != nil {
		return Value{}, err
	}
	err := m.body.run(f)
	return NewString(f.out.String()), err
}

// extra sets what a macro gets beside its parameters.
func (m *macro) extra(f *frame, a args) error {
	more := a.pos[min(len(m.params), len(a.pos)):]
	rest := &Dict{Data: map[string]Value{}}
	if a.kw != nil {
		for _, k := range a.kw.Keys {
			if m.param(k) < len(a.pos) && (k != "caller" || m.caller < 0) {
				rest.Set(k, a.kw.Data[k])
			}
		}
	}
	if m.caller >= 0 {
		v, _ := a.kw.Get("caller")
		f.set(m.caller, v)
	}
	switch {
	case m.kwargs >= 0:
		f.set(m.kwargs, Value{rest})
	case rest.Len() > 0:
		return faultf("macro '%s' takes no keyword argument '%s'", m.name, rest.Keys[0])
	}
	switch {
	case m.varargs >= 0:
		f.set(m.varargs, newTuple(more...))
	case len(more) > 0:
		return faultf("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
	}
	return nil
}
