package template

import "slices"

// macro is a macro, or the body of a call block.
type macro struct {
	name   string
	params []param
	body   block
	// The numbers of the variables that a macro gets besides its parameters, if its body mentions
	// them; -1: it does not.
	caller, kwargs, varargs int
}

type param struct {
	name string
	id   int
	def  expr // nil: none
}

// params reads the parameters of a macro or a caller.
func (p *parser) params() []param {
	p.expect("(")
	var out []param
	for p.more(out == nil, ")") {
		t := p.expectKind(kindName, "a parameter")
		one := param{name: t.val, id: p.ident(t.val)}
		if p.take("=") {
			one.def = p.expr()
		} else if n := len(out); t.val == "caller" || n > 0 && out[n-1].def != nil {
			panic(p.fail(t, "the parameter %s needs a default", t.val))
		}
		out = append(out, one)
	}
	return out
}

// macroBody reads the body of a macro up to its end tag.
func (p *parser) macroBody(m *macro, end string) {
	p.shut()
	loops, special := p.loops, p.special
	p.loops, p.special = 0, map[string]bool{}
	m.body, _ = p.body(end)
	for name, id := range map[string]*int{"caller": &m.caller, "kwargs": &m.kwargs, "varargs": &m.varargs} {
		*id = -1
		if p.special[name] && m.param(name) < 0 {
			*id = p.ident(name)
		}
		special[name] = special[name] || p.special[name]
	}
	p.loops, p.special = loops, special
}

func (p *parser) macro() stmt {
	m := &macro{name: p.expectKind(kindName, "a macro name").val}
	m.params = p.params()
	p.macroBody(m, "endmacro")
	if p.peek().kind == kindName {
		p.next()
	}
	p.shut()
	id := p.ident(m.name)
	return func(f *frame) signal {
		f.set(id, m.in(f))
		return onward
	}
}

// callBlock reads a call block: its body is a macro that the called one gets under the name caller.
func (p *parser) callBlock() stmt {
	m := &macro{name: "caller"}
	if p.is("(") {
		m.params = p.params()
	}
	start := p.peek()
	e := p.postfix(p.primary(), start)
	site := p.site
	if site == nil || site.end != p.pos {
		panic(p.fail(start, "expected a macro call"))
	}
	site.caller = m
	p.macroBody(m, "endcall")
	p.shut()
	return printing(e)
}

// in returns the macro as a value of its scope.
func (m *macro) in(f *frame) Value {
	return Value{&callable{m.name, func(_ *run, a args) Value { return m.call(f, a) }}}
}

// param returns the position of a parameter; -1: there is none of this name.
func (m *macro) param(name string) int {
	return slices.IndexFunc(m.params, func(p param) bool { return p.name == name })
}

func (m *macro) call(scope *frame, a args) Value {
	scope.deeper()
	f := scope.buffered()
	for i, p := range m.params {
		v, given := a.at(i, p.name)
		if !given && p.def != nil {
			v = p.def(f)
		}
		f.set(p.id, v)
	}
	m.extra(f, a)
	m.body.run(f)
	scope.depth--
	return NewString(f.out.String())
}

// extra sets the variables that a macro gets besides its parameters.
func (m *macro) extra(f *frame, a args) {
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
	if m.kwargs >= 0 {
		f.set(m.kwargs, Value{rest})
	} else if rest.Len() > 0 {
		panic(faultf("macro '%s' takes no keyword argument '%s'", m.name, rest.Keys[0]))
	}
	if m.varargs >= 0 {
		f.set(m.varargs, newTuple(more...))
	} else if len(more) > 0 {
		panic(faultf("macro '%s' takes not more than %d argument(s)", m.name, len(m.params)))
	}
}
