package template

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestMarkUnmark(t *testing.T) {
	for _, test := range []struct {
		marked, text string
		spans        []Span
	}{
		{"", "", nil}, {"ab", "ab", nil}, {MarkString(""), "", nil}, {MarkString("é"), "é", []Span{{0, 2}}},
		{"a" + MarkString("b") + "c", "abc", []Span{{1, 2}}}, {MarkString("a") + MarkString("b"), "ab", []Span{{0, 2}}},
		{MarkString("abcd", Span{1, 2}, Span{3, 4}), "abcd", []Span{{0, 1}, {2, 3}}}, {MarkString("ab", Span{0, 2}), "ab", nil},
	} {
		text, spans := Unmark(test.marked)
		if text != test.text || !slices.Equal(spans, test.spans) || plain(test.marked) != text {
			t.Errorf("%q: %q %v, want %q %v", test.marked, text, spans, test.text, test.spans)
		}
	}
}

// TestCut: every part of a marked string is the part of its text with the marks that lie there,
// against a byte-by-byte oracle.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var marked strings.Builder
		var text string
		var client []bool
		for range r.IntN(5) {
			part := strings.Repeat("abc", 2)[:r.IntN(6)]
			on := r.IntN(2) == 0
			if on {
				marked.WriteString(MarkString(part))
			} else {
				marked.WriteString(part)
			}
			text += part
			for range part {
				client = append(client, on)
			}
		}
		v := viewOf(marked.String())
		for from := range len(text) + 1 {
			for to := from; to <= len(text); to++ {
				got, spans := Unmark(v.cut(from, to))
				have := make([]bool, len(got))
				for _, s := range spans {
					for i := s.From; i < s.To; i++ {
						have[i] = true
					}
				}
				if got != text[from:to] || !slices.Equal(have, client[from:to]) {
					t.Fatalf("%q[%d:%d] = %q %v, want %q %v", marked.String(), from, to, got, have, text[from:to], client[from:to])
				}
			}
		}
	}
}

// TestMarksFollow: what operations make of a client's words stays the client's.
func TestMarksFollow(t *testing.T) {
	list := NewList([]Value{NewString("p"), NewString("q")})
	vars := map[string]Value{"c": Mark(NewString("Ab cD")), "d": Mark(object("k", "v'\"")), "l": Mark(list), "e": Mark(NewString(""))}
	for source, want := range map[string]string{
		"{{ 'x' + c + 'y' }}": "x[Ab cD]y", "{{ 'x' ~ c ~ 1 }}": "x[Ab cD]1", "{{ c[1:4] }}": "[b c]", "{{ c[::-1] }}": "[Dc bA]", "{{ c[0] }}": "[A]", "{{ c * 2 }}": "[Ab cDAb cD]",
		"{{ c.split(' ') | join('-') }}": "[Ab]-[cD]", "{{ c.split(' ')[-1] }}": "[cD]", "{{ c | upper }}": "[AB CD]", "{{ c | title }}": "[Ab Cd]", "{{ c.capitalize() }}": "[Ab cd]",
		"{{ c.replace(' ', '<>') }}": "[Ab]<>[cD]", "{{ 'a-b'.replace('-', c) }}": "a[Ab cD]b", "{{ ('<' + c + '>').strip('<A') }}": "[b cD]>", "{{ c.partition(' ')[0] }}": "[Ab]",
		"{{ '%s!' % c }}": "[Ab cD]!", "{{ '{}!'.format(c) }}": "[Ab cD]!", "{{ '%.2s' % c }}": "[Ab]", "{{ c | tojson }}": `"[Ab cD]"`, "{{ d | tojson }}": `{"[k]": "[v'\"]"}`,
		"{{ d }}": `{'[k]': '[v\'"]'}`, "{{ [c] }}": "['[Ab cD]']", "{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}": `[k]=[v'"]`, "{% for k in d %}{{ k }}{% endfor %}": "[k]",
		"{{ d | dictsort | first | first }}": "[k]", "{{ dict(d) | list | first }}": "[k]", "{{ d.keys() | first }}": "[k]", "{% for x in c[:2] %}{{ x }}.{% endfor %}": "[A].[b].",
		"{{ l | join(',') }}": "[p],[q]", "{{ l | map('upper') | join(c) }}": "[PAb cDQ]", "{{ l | first }}": "[p]", "{{ l | reverse | list | first }}": "[q]", "{{ l | sort | last }}": "[q]",
		"{% set x %}a{{ c }}{% endset %}{{ x }}": "a[Ab cD]", "{% macro f(x) %}({{ x }}){% endmacro %}{{ f(c) }}": "([Ab cD])", "{{ c | indent }}": "[Ab cD]", "{{ (c ~ '\n' ~ c) | indent(1) }}": "[Ab cD]\n [Ab cD]",
		"{{ e or 'none' }}": "none", "{{ c or 'none' }}": "[Ab cD]", "{{ c if c == 'Ab cD' and 'b c' in c and c.startswith('Ab') }}": "[Ab cD]", "{{ c | length }}": "5", "{{ {c: 1}['Ab cD'] }}": "1",
		"{{ d[c[0:0] ~ 'k'] }}": `[v'"]`, "{{ c | replace('A', '') | trim }}": "[b cD]", "{{ c | e }}": "[Ab cD]", "{{ 'x'.join(l) }}": "[p]x[q]", "{{ c.center(7, '*') }}": "*[Ab cD]*",
		"{{ namespace(d).k }}": `[v'"]`, "{% filter upper %}x{{ c }}{% endfilter %}": "X[AB CD]", "{{ (c ~ 'x')[4:] }}": "[D]x", "{{ l | batch(1) | first | first }}": "[p]", "{{ c.splitlines()[0] }}": "[Ab cD]",
	} {
		prog, err := Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		out, err := prog.Run(vars, Config{})
		text, spans := Unmark(out)
		var b strings.Builder
		at := 0
		for _, s := range spans {
			b.WriteString(text[at:s.From] + "[" + text[s.From:s.To] + "]")
			at = s.To
		}
		if got := b.String() + text[at:]; err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", source, got, err, want)
		}
	}
}
