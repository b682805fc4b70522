package template

import (
	"fmt"
	"slices"
	"strings"
)

func (p *parser) ifBlock() (string, error) {
	var b strings.Builder
	for tag := "if"; ; tag = "elif" {
		cond, err := p.tuple(false)
		if err != nil {
			return "", err
		}
		if err := p.shut(); err != nil {
			return "", err
		}
		code, end, err := p.body(false, "elif", "else", "endif")
		if err != nil {
			return "", err
		}
		b.WriteString(stmt(tag, cond) + code)
		if end == "elif" {
			continue
		}
		if end == "else" {
			if err := p.shut(); err != nil {
				return "", err
			}
			code, _, err := p.body(false, "endif")
			if err != nil {
				return "", err
			}
			b.WriteString(stmt("else") + code)
		}
		b.WriteString(stmt("endif"))
		return b.String(), p.shut()
	}
}

// target reads the names on the left of "in" or "=". A name may carry an
// attribute (a namespace's) only where attr is set.
func (p *parser) target(attr bool) (names []string, field string, err error) {
	paren := p.take("(")
	for {
		t, err := p.expectKind(kindName, "a name")
		if err != nil {
			return nil, "", err
		}
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, t.val) {
			return nil, "", p.fail(t, "can't assign to %q", t.val)
		}
		names = append(names, p.ident(t.val))
		if attr && len(names) == 1 && p.take(".") {
			f, err := p.expectKind(kindName, "an attribute")
			if err != nil {
				return nil, "", err
			}
			return names, p.ident(f.val), nil
		}
		if !p.take(",") || paren && p.is(")") {
			break
		}
	}
	if paren {
		return names, "", p.expect(")")
	}
	return names, "", nil
}

func (p *parser) temp() string {
	p.temps++
	return fmt.Sprintf("%s_%d", prefix, p.temps)
}

// forBlock writes loops with one variable; several are unpacked in the body,
// where the engine would take whatever it finds.
func (p *parser) forBlock() (string, error) {
	names, _, err := p.target(false)
	if err != nil {
		return "", err
	}
	if err := p.expect("in"); err != nil {
		return "", err
	}
	start := p.peek()
	iter, err := p.tuple(false)
	if err != nil {
		return "", err
	}
	src := p.between(start)
	item, unpack := names[0], ""
	if len(names) > 1 {
		item = p.temp()
		unpack = stmt("set", strings.Join(names, ", "), "=", p.call("unpack", item, fmt.Sprint(len(names))))
	}
	head := []string{"for", item, "in", p.call("iter", iter, quote(src))}
	if p.take("if") {
		cond, err := p.expr()
		if err != nil {
			return "", err
		}
		if len(names) > 2 {
			return "", p.fail(start, "a loop with a condition takes at most two names")
		}
		if len(names) == 2 {
			head[1] = strings.Join(names, ", ")
			head[3] = p.call("pairs", iter, quote(src))
			unpack = ""
		}
		head = append(head, "if", cond)
	}
	if p.take("recursive") {
		head = append(head, "recursive")
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	p.loops++
	code, end, err := p.body(true, "else", "endfor")
	p.loops--
	if err != nil {
		return "", err
	}
	out := stmt(head...) + unpack + code
	if end == "else" {
		if err := p.shut(); err != nil {
			return "", err
		}
		code, _, err := p.body(false, "endfor")
		if err != nil {
			return "", err
		}
		out += stmt("else") + code
	}
	return out + stmt("endfor"), p.shut()
}

func (p *parser) set() (string, error) {
	names, field, err := p.target(true)
	if err != nil {
		return "", err
	}
	if p.take("=") {
		value, err := p.tuple(true)
		if err != nil {
			return "", err
		}
		switch {
		case field != "":
			value = p.call("field", names[0], quote(field), value)
			return stmt("set", names[0]+"."+field, "=", value), p.shut()
		case len(names) > 1:
			value = p.call("unpack", value, fmt.Sprint(len(names)))
		}
		return stmt("set", strings.Join(names, ", "), "=", value), p.shut()
	}
	if len(names) > 1 || field != "" {
		return "", p.fail(p.peek(), "a block can be assigned to one name only")
	}
	value, err := p.filters(names[0])
	if err != nil {
		return "", err
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	code, _, err := p.body(true, "endset")
	if err != nil {
		return "", err
	}
	out := stmt("set", names[0]) + code + stmt("endset")
	if value != names[0] {
		out += stmt("set", names[0], "=", value)
	}
	return out, p.shut()
}

// filterBlock reads {% filter f %}...{% endfilter %}.
func (p *parser) filterBlock() (string, error) {
	name := p.temp()
	value, err := p.filter(name)
	if err == nil {
		value, err = p.filters(value)
	}
	if err != nil {
		return "", err
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	code, _, err := p.body(true, "endfilter")
	if err != nil {
		return "", err
	}
	return stmt("set", name) + code + stmt("endset") + p.output(value), p.shut()
}

// params reads the parameters of a macro or a caller.
func (p *parser) params() ([]string, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	var out []string
	for !p.take(")") {
		t, err := p.expectKind(kindName, "a parameter")
		if err != nil {
			return nil, err
		}
		param := p.ident(t.val)
		if p.take("=") {
			e, err := p.expr()
			if err != nil {
				return nil, err
			}
			param += "=" + e
		}
		out = append(out, param)
		if !p.take(",") && !p.is(")") {
			return nil, p.fail(p.peek(), "expected %q, found %q", ",", p.peek().val)
		}
	}
	return out, nil
}

// macro writes a macro whose body counts its depth, so that one that calls
// itself for ever ends in an error.
func (p *parser) macro() (string, error) {
	name, err := p.expectKind(kindName, "a macro name")
	if err != nil {
		return "", err
	}
	params, err := p.params()
	if err != nil {
		return "", err
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	loops := p.loops
	p.loops = 0
	code, _, err := p.body(true, "endmacro")
	p.loops = loops
	if err != nil {
		return "", err
	}
	if p.peek().kind == kindName {
		p.next()
	}
	start := p.call("enter")
	if !p.names["varargs"] {
		start = p.call("enter", "varargs", quote(name.val), fmt.Sprint(len(params)))
	}
	return stmt("macro", p.ident(name.val)+"("+strings.Join(params, ", ")+")") +
		"{{ " + start + " }}" + code + "{{ " + p.call("leave") + " }}" + stmt("endmacro"), p.shut()
}

func (p *parser) callBlock() (string, error) {
	var params []string
	if p.is("(") {
		var err error
		if params, err = p.params(); err != nil {
			return "", err
		}
	}
	start := p.peek()
	name, err := p.expectKind(kindName, "a macro call")
	if err != nil {
		return "", err
	}
	if !p.take("(") {
		return "", p.fail(start, "expected a macro call")
	}
	args, err := p.args()
	if err != nil {
		return "", err
	}
	if err := p.shut(); err != nil {
		return "", err
	}
	loops := p.loops
	p.loops = 0
	code, _, err := p.body(true, "endcall")
	p.loops = loops
	if err != nil {
		return "", err
	}
	head := "call"
	if params != nil {
		if strings.Contains(strings.Join(params, ""), "=") {
			return "", p.fail(start, "defaults in call blocks are not supported")
		}
		head += "(" + strings.Join(params, ", ") + ")"
	}
	fn := p.call("fn", p.ident(name.val), quote(name.val))
	return stmt(head, fn+"("+strings.Join(args, ", ")+")") + code + stmt("endcall"), p.shut()
}
