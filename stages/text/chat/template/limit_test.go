package template

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// TestLimits: a template that would run, write or nest for ever is stopped.
func TestLimits(t *testing.T) {
	const big = "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}"
	for name, source := range map[string]string{
		"nested loops":        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"loops that write":    "{% for a in range(100000) %}{% for b in range(1000) %}0123456789{% endfor %}{% endfor %}",
		"doubled string":      big + "{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubled by ~":        big + "{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"doubled by join":     big + "{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
		"doubled by format":   big + "{% for i in range(100) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
		"doubled by replace":  big + "{% for i in range(100) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
		"doubled by tojson":   big + "{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] | tojson %}{% endfor %}",
		"doubled by a block":  big + "{% for i in range(100) %}{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}{% endfor %}",
		"doubled list":        "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"repeated string":     "{{ ('x' * 1000000000000) | length }}",
		"repeated list":       "{{ ([1] * 1000000000000) | length }}",
		"repeated often":      "{{ 'x' * 60000000 * 60000000 }}",
		"macro without end":   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"caller without end":  "{% macro f() %}{% call f() %}x{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}y{% endcall %}",
		"loop without end":    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"loop, another name":  "{% for x in [1] recursive %}{% set again = loop %}{{ again([1]) }}{% endfor %}",
		"loop in a namespace": "{% for x in [1] recursive %}{% set ns = namespace(f=loop) %}{{ ns.f([1]) }}{% endfor %}",
		"nesting in data":     "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
		"equality of nesting": "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
		"equality too deep":   "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(2000) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
		"order too deep":      "{% set ns = namespace(a=[1], b=[2]) %}{% for i in range(2000) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a < ns.b }}",
		"default for ever":    "{% macro f(a=f()) %}{% endmacro %}{{ f() }}",
		"many statements":     "{% for i in range(100000) %}" + strings.Repeat("{% if i %}{% endif %}", 1000) + "{% endfor %}",
		"a long list":         "{% for i in range(100000) %}{% set x = [" + strings.Repeat("i,", 10_000) + "] %}{% endfor %}",
		"printed nesting":     "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
	} {
		prog, err := Compile(source)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		start := time.Now()
		out, err := prog.Run(nil, Config{Steps: 300_000, Output: 1 << 20})
		if err == nil || !errors.Is(err, ErrLimit) && !strings.Contains(err.Error(), "nested too deeply") {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: stopped after %v only", name, d)
		}
	}
}

// TestStackIsBounded: no template makes the stack overflow, which would end the program.
func TestStackIsBounded(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(32 << 20))
	long := strings.Repeat(".a", 140)
	for name, part := range map[string][2]string{
		"filters": {"(", strings.Repeat("|e", 140) + ")"}, "sums": {"(", strings.Repeat("+1", 140) + ")"}, "attributes": {"(", long + ")"},
		"subscripts": {"x[", "]" + long}, "calls": {"x(", ")" + long}, "lists": {"[", "]" + long}, "not": {"not (", ")"},
	} {
		deep := strings.Repeat(part[0], 30) + "f()" + strings.Repeat(part[1], 30)
		prog, err := Compile(strings.Repeat("{% if 1 %}", 10) + "{% macro f() %}{{ " + deep + " }}{% endmacro %}{{ f() }}" + strings.Repeat("{% endif %}", 10))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := prog.Run(map[string]Value{"x": object()}, Config{}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOrdinaryWork: a long conversation stays far below the limits.
func TestOrdinaryWork(t *testing.T) {
	prog, err := Compile("{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.role + m.content | trim %}{% endfor %}{{ ns.s }}")
	if err != nil {
		t.Fatal(err)
	}
	m := Mark(object("role", "user", "content", strings.Repeat("word ", 200)))
	messages := make([]Value, 500)
	for i := range messages {
		messages[i] = m
	}
	out, err := prog.Run(map[string]Value{"messages": NewList(messages)}, Config{})
	if text, _ := Unmark(out); err != nil || len(text) != 500*(4+5*200-1) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// object returns a dict of strings.
func object(pairs ...string) Value {
	v := NewDict()
	for i := 0; i < len(pairs); i += 2 {
		v.AsDict().Set(pairs[i], NewString(pairs[i+1]))
	}
	return v
}

// TestSyntax: what does not compile, and the line that is to blame.
func TestSyntax(t *testing.T) {
	for source, want := range map[string]string{
		"a\nb{{ x": "line 2: unexpected end of template", "{% if x %}": "expected elif or else or endif", "{% for x y %}": `expected "in"`,
		"{% endif %}": `unsupported tag "endif"`, "{{ 'a }}": "string is not closed", "{# a": "end of comment", "{% raw %}x": "end of raw",
		"{{ a b }}": `expected "}}"`, "{{ }}": "unexpected", "{{ a. }}": "expected an attribute", "{{ a[] }}": "expected a subscript", "{{ (1 }}": "expected",
		"{{ [1 2] }}": `expected "]"`, "{{ {1} }}": `expected ":"`, "{{ f(a=1, 2) }}": "positional argument follows", "{{ 1 if }}": "unexpected",
		"{% set 1 = 2 %}": "expected a name", "{% set true = 2 %}": "can't assign", "{% set a, = 1 %}": "expected a name", "{% macro f(a=1, b) %}": "needs a default", "{% macro f(caller) %}": "caller", "{% break %}": "outside of a loop",
		"{% include 'x' %}": "include", "{% extends 'x' %}": "extends", "{% with a=1 %}{% endwith %}": "with", "{% macro f %}": `expected "("`, "{% call x %}": "macro call",
		"{{ é }}": "ASCII", "{{ x ? y }}": "unexpected character", "{{ 99999999999999999999 }}": "integer", `{{ '\ud800' }}`: "bad escape", `{{ '\xg' }}`: "bad escape",
		"{{ a is b is c }}": "chain", "{{ " + strings.Repeat("(", 400) + "1" + strings.Repeat(")", 400) + " }}": "too deeply", "{{ " + strings.Repeat("-", 400) + "1 }}": "too deeply",
		"{{ " + strings.Repeat("not ", 400) + "1 }}": "too deeply", "{{ 1" + strings.Repeat(" + 1", 400) + " }}": "too long", "{{ a" + strings.Repeat(".b", 400) + " }}": "too long",
		"{{ a" + strings.Repeat("|e", 400) + " }}": "too long", strings.Repeat("{% if a %}", 400): "too deeply", "{{ 1" + strings.Repeat(" or 1", 1500) + " }}": "too long",
		"{{ 1" + strings.Repeat(" < 1", 1500) + " }}": "too long", strings.Repeat("x", maxSource+1): "the limit is", "\xff": "UTF-8",
		"}}{{ ) }}": "unexpected )",
	} {
		_, err := Compile(source)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", source, err, want)
		}
	}
}

// TestFaults: what raises while rendering, and its words.
func TestFaults(t *testing.T) {
	vars := map[string]Value{"m": object("a", "1"), "s": NewString("x")}
	for source, want := range map[string]string{
		"{{ a.b }}": "'a' is undefined", "{{ m.b.c }}": "'m.b' is undefined", "{{ m['b'][0] }}": "'m['b']' is undefined", "{{ f() }}": "'f' is undefined",
		"{{ m.f() }}": "'dict object' has no attribute 'f'", "{% for x in [1] recursive %}{{ (loop | items | list)[0] }}{% endfor %}": "item pairs", "{% for x in [1] recursive %}{{ dict(loop) }}{% endfor %}": "not iterable",
		"{% for x in [1] recursive %}{{ loop.__call__([1]) }}{% endfor %}": "'LoopContext object' has no attribute '__call__'", "{{ none.strip() }}": "'None' has no attribute 'strip'", "{{ s + 1 }}": `can only concatenate str (not "int") to str`,
		"{{ none + s }}": "unsupported operand type(s) for +: 'NoneType' and 'str'", "{{ 1 in none }}": "argument of type 'NoneType' is not iterable",
		"{% for x in none %}{% endfor %}": "'NoneType' object is not iterable", "{{ s | nosuch }}": `no filter named "nosuch"`, "{{ s is nosuch }}": `no test named "nosuch"`,
		"{{ [].append(1) }}": "access to attribute 'append' of 'list' object is unsafe", "{{ 1 // 0 }}": "by zero", "{{ 9223372036854775807 + 1 }}": "integer too large",
		"{{ 9223372036854775807 * 2 }}": "integer too large", "{{ 10 ** 30 }}": "integer too large", "{{ raise_exception('w' ~ s) }}": "wx",
	} {
		prog, err := Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if out, err := prog.Run(vars, Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", source, out, err, want)
		}
	}
}

// leaver is a context that ends when it has been looked at so often.
type leaver struct {
	context.Context
	left int
}

func (c *leaver) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestRunEndsWithItsContext: who has left is not rendered for any longer.
func TestRunEndsWithItsContext(t *testing.T) {
	for name, source := range map[string]string{
		"loops":   "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"strings": "{% set ns = namespace(s='x' * 100000) %}{% for i in range(100000) %}{% set t = ns.s | trim %}{% endfor %}",
	} {
		prog, err := Compile(source)
		if err != nil {
			t.Fatal(err)
		}
		ctx := &leaver{t.Context(), 5}
		if _, err := prog.Run(nil, Config{Ctx: ctx}); !errors.Is(err, context.Canceled) || ctx.left < -3 {
			t.Errorf("%s: %v, looked at %d times after the end", name, err, -1-ctx.left)
		}
	}
}
