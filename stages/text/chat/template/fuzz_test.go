package template

import (
	"errors"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzCompile: whatever the template, no panic and an end; with marks the text is the same as
// without.
func FuzzCompile(f *testing.F) {
	for _, source := range []string{
		"{% for m in messages %}{{ m.role ~ m['content'] | trim }}{% endfor %}", "{% macro f(a, b=1) %}{{ a[b:] }}{% endmacro %}{{ f(messages) }}",
		"{%- set ns = namespace(x=[]) -%}{% for m in messages if m.role %}{% set ns.x = ns.x + [m] %}{% endfor %}{{ ns.x | tojson(indent=2) }}",
		"{{ messages[0].content.split('<')[-1].replace('a', 'b') | upper | indent }}", "{% raw %}{{{% endraw %}{# c #}{{ '%s' % messages }}", "{{ 1 if messages is defined else 2 ** 3 // -1 }}",
		"{% set x %}a{% endset %}{% filter upper %}{{ x }}{% endfilter %}{% call(y) f() %}{% endcall %}", "{{ messages | map(attribute='content') | select | join(', ') | title }}{{ x.y }}",
		"{% for x in messages recursive %}{{ loop(x.items()) if x is mapping }}{% endfor %}", "{% macro f(a, b=a) %}{{ caller(a, *varargs, **kwargs) }}{% endmacro %}{% call(x, y=2) f(1, c=3) %}{{ x < y < 3 }}{% endcall %}", "{% for i, (k, v) in [(1, messages[0].items() | first)] if k %}{{ loop.last }}{% break %}{% else %}{% endfor %}",
		"{% set ns = namespace() %}{% set ns.x | upper %}{% block b scoped %}{{ messages }}{% endblock %}{% endset %}{{ ns.x }}", "{{ messages.0.role }}", "{{ messages[0].0B00 }}", "{{ '\\x41\\n' 'b' ~ messages[::-1] ~ 'x'.center(9) ~ '{}'.format(1) }}",
	} {
		f.Add(source, "a<b>\n'é")
	}
	f.Fuzz(func(t *testing.T, source, content string) {
		prog, err := Compile(source)
		if errors.Is(err, errPanic) {
			t.Fatalf("%q: %v", source, err)
		}
		if err != nil || !utf8.ValidString(content) {
			return
		}
		c := Config{Steps: 20_000, Output: 1 << 16, Now: func() time.Time { return time.Unix(0, 0).UTC() }}
		list := NewList([]Value{object("role", "user", "content", content), object("role", "b")})
		want, errWant := prog.Run(map[string]Value{"messages": list}, c)
		if errors.Is(errWant, errPanic) {
			t.Fatalf("%q: %v", source, errWant)
		}
		c.Steps, c.Output = 2*c.Steps, 2*c.Output // marks are bytes, too
		out, errGot := prog.Run(map[string]Value{"messages": Mark(list)}, c)
		if text, _ := Unmark(out); errWant == nil && (text != want || errGot != nil) {
			t.Fatalf("%q: marked %q, %v, plain %q", source, text, errGot, want)
		}
	})
}
