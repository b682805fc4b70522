package template

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// rewrite parses a template and returns its canonical form, with the parser
// that knows which functions and names it uses.
func rewrite(source string) (string, *parser, error) {
	if len(source) > maxSource {
		return "", nil, fmt.Errorf("chat template: %d bytes, the limit is %d", len(source), maxSource)
	}
	if !utf8.ValidString(source) {
		return "", nil, errors.New("chat template: not valid UTF-8")
	}
	src := normalize(source)
	toks, err := lex(src)
	if err != nil {
		return "", nil, err
	}
	p := &parser{src: src, toks: toks, used: map[string]bool{}, names: map[string]bool{}}
	code, _, err := p.body(false)
	return code, p, err
}

// cause finds the error of this package in what the engine returns.
func (r *run) cause(err error) error {
	var raised *Raised
	var fault *Fault
	if errors.As(err, &raised) {
		return raised
	}
	if errors.As(err, &fault) {
		return fault
	}
	if errors.Is(err, ErrLimit) || r.ctx != nil && r.ctx.Err() != nil {
		return err
	}
	return &Fault{Message: err.Error()}
}

// core are the functions that the canonical form calls for the grammar itself.
var core = map[string]function{
	"out": out, "step": step, "enter": enter, "leave": leave, "unknown": unknown,
	"iter": iter, "pairs": pairs, "unpack": unpack, "field": field, "key": key, "keywords": keywords,
	"attr": attr, "item": itemOf, "slice": slice, "method": method, "fn": fn,
	"eq": eq, "ne": ne, "lt": order("<"), "le": order("<="), "gt": order(">"), "ge": order(">="), "in": in,
	"add": add, "sub": sub, "mul": mul, "div": div, "floordiv": floordiv, "mod": mod, "pow": pow,
	"neg": neg, "pos": pos, "concat": concat,
}

var empty = jinja.NewString("")

// out is what {{ }} prints.
func out(r *run, a args) (jinja.Value, error) {
	s := r.printed(a.pos[0])
	if r.output -= len(s); r.output < 0 {
		return empty, fmt.Errorf("%w: it writes too much text", ErrLimit)
	}
	return jinja.NewString(s), nil
}

// step begins a block; its arguments are the size of the block's own data and
// what a turn costs.
func step(r *run, a args) (jinja.Value, error) {
	n := int(a.pos[0].AsInt())
	if r.output -= n; r.output < 0 {
		return empty, fmt.Errorf("%w: it writes too much text", ErrLimit)
	}
	return empty, r.spend(n/1024 + int(a.pos[1].AsInt()))
}

// enter begins a macro; its arguments, where there are any, are what the macro
// got beyond its parameters, its name, and how many parameters it has.
func enter(r *run, a args) (jinja.Value, error) {
	if len(a.pos) > 0 && a.pos[0].AsList().Len() > 0 {
		return empty, faultf("macro '%s' takes not more than %d argument(s)", a.pos[1].AsString(), a.pos[2].AsInt())
	}
	if r.depth++; r.depth > maxDepth {
		return empty, fmt.Errorf("%w: its macros nest too deeply", ErrLimit)
	}
	return empty, nil
}

func leave(r *run, _ args) (jinja.Value, error) {
	r.depth--
	return empty, nil
}

func unknown(_ *run, a args) (jinja.Value, error) {
	return empty, faultf("no %s named %q", a.pos[0].AsString(), a.pos[1].AsString())
}

// field checks an assignment to an attribute and returns what is assigned.
func field(_ *run, a args) (jinja.Value, error) {
	if !a.pos[0].IsDict() || !flagged(a.pos[0].AsDict(), flagSpace) {
		return empty, faultf("cannot assign attribute on non-namespace object")
	}
	return a.pos[2], nil
}

// key is a key of a dict literal: keys are plain text.
func key(r *run, a args) (jinja.Value, error) {
	return jinja.NewString(plain(r.printed(a.pos[0]))), nil
}

// keywords is the operand of ** in a call.
func keywords(_ *run, a args) (jinja.Value, error) {
	if !a.pos[0].IsDict() {
		return empty, faultf("argument after ** must be a mapping, not %s", typeName(a.pos[0]))
	}
	return a.pos[0], nil
}
