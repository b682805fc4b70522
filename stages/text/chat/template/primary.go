package template

import (
	"strconv"
	"strings"
)

var constants = map[string]string{
	"true": "true", "True": "true", "false": "false", "False": "false", "none": "none", "None": "none",
}

func isKeyword(s string) bool {
	switch s {
	case "if", "else", "elif", "and", "or", "not", "in", "is", "recursive":
		return true
	}
	return false
}

func (p *parser) primary() (string, error) {
	t := p.next()
	switch t.kind {
	case kindName:
		if c := constants[t.val]; c != "" {
			return c, nil
		}
		if isKeyword(t.val) {
			return "", p.fail(t, "unexpected %q", t.val)
		}
		return p.ident(t.val), nil
	case kindString:
		val := t.val
		for p.peek().kind == kindString {
			val += p.next().val
		}
		if len(val) <= maxName {
			p.names[val] = true // a subscript or an argument of get
		}
		return quote(val), nil
	case kindInt:
		return p.integer(t)
	case kindFloat:
		f, err := strconv.ParseFloat(strings.ReplaceAll(t.val, "_", ""), 64)
		if err != nil {
			return "", p.fail(t, "bad number %q", t.val)
		}
		return strconv.FormatFloat(f, 'e', -1, 64), nil
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
	return "", p.fail(t, "unexpected %q", t.val)
}

func (p *parser) integer(t token) (string, error) {
	n, err := strconv.ParseInt(t.val, 0, 64)
	if err != nil {
		return "", p.fail(t, "bad or too large integer %q", t.val)
	}
	return strconv.FormatInt(n, 10), nil
}

func (p *parser) paren() (string, error) {
	if p.take(")") {
		return "()", nil
	}
	if err := p.enter(); err != nil {
		return "", err
	}
	defer p.leave()
	e, err := p.tuple(true)
	if err != nil {
		return "", err
	}
	return "(" + e + ")", p.expect(")")
}

func (p *parser) list() (string, error) {
	var items []string
	for !p.take("]") {
		e, err := p.expr()
		if err != nil {
			return "", err
		}
		items = append(items, e)
		if !p.take(",") && !p.is("]") {
			return "", p.expect("]")
		}
	}
	return "[" + strings.Join(items, ", ") + "]", nil
}

func (p *parser) dict() (string, error) {
	var items []string
	for !p.take("}") {
		literal := p.peek().kind == kindString
		key, err := p.expr()
		if err != nil {
			return "", err
		}
		if err := p.expect(":"); err != nil {
			return "", err
		}
		val, err := p.expr()
		if err != nil {
			return "", err
		}
		if !literal {
			key = p.call("key", key)
		}
		items = append(items, key+": "+val)
		if !p.take(",") && !p.is("}") {
			return "", p.expect("}")
		}
	}
	return "{" + strings.Join(items, ", ") + "}", nil
}
