package template

import (
	"strings"
	"unicode/utf8"
)

// splitMethod is str.split, and str.rsplit from the right.
func splitMethod(right bool) methodFunc {
	return func(r *run, v Value, a args) Value {
		w := viewOf(v.AsString())
		limit := -1
		if n, ok := integer(a.or(1, "maxsplit", NewInt(-1))); !ok {
			panic(faultf("maxsplit must be an integer"))
		} else if n >= 0 {
			limit = int(min(n, int64(len(w.text))))
		}
		var cuts []Span
		switch sep := a.or(0, "sep", None()); {
		case sep.IsNone():
			cuts = fields(w.text, limit, right)
		case !sep.IsString():
			panic(faultf("must be str or None, not %s", typeName(sep)))
		case plain(sep.AsString()) == "":
			panic(faultf("empty separator"))
		default:
			cuts = pieces(w.text, plain(sep.AsString()), limit, right)
		}
		r.made(16 * len(cuts))
		return w.parts(cuts)
	}
}

// parts returns the list of the pieces of a string.
func (v view) parts(cuts []Span) Value {
	list := make([]Value, len(cuts))
	for i, c := range cuts {
		list[i] = NewString(v.cut(c.From, c.To))
	}
	return NewList(list)
}

// pieces cuts s at sep, at most limit times (-1: always).
func pieces(s, sep string, limit int, right bool) []Span {
	var seps []int
	if right {
		for end := len(s); limit != 0; limit-- {
			i := strings.LastIndex(s[:end], sep)
			if i < 0 {
				break
			}
			seps = append([]int{i}, seps...)
			end = i
		}
	} else {
		for at := 0; limit != 0; limit-- {
			i := strings.Index(s[at:], sep)
			if i < 0 {
				break
			}
			seps = append(seps, at+i)
			at += i + len(sep)
		}
	}
	var out []Span
	at := 0
	for _, i := range seps {
		out = append(out, Span{at, i})
		at = i + len(sep)
	}
	return append(out, Span{at, len(s)})
}

// fields cuts s at runs of white space, as split without a separator.
func fields(s string, limit int, right bool) []Span {
	var out []Span
	for at := 0; at < len(s); {
		from := at + len(s[at:]) - len(strings.TrimLeftFunc(s[at:], isSpace))
		if from == len(s) {
			break
		}
		to := len(s)
		if i := strings.IndexFunc(s[from:], isSpace); i >= 0 {
			to = from + i
		}
		out = append(out, Span{from, to})
		at = to
	}
	if limit < 0 || len(out) <= limit+1 {
		return out
	}
	if right {
		rest := len(out) - limit
		return append([]Span{{0, out[rest-1].To}}, out[rest:]...)
	}
	return append(out[:limit:limit], Span{out[limit].From, len(s)})
}

// splitLines cuts s at Python's line ends, which keep stay on the lines.
func splitLines(s string, keep bool) []string {
	v := viewOf(s)
	var out []string
	for _, c := range lines(v.text, keep) {
		out = append(out, v.cut(c.From, c.To))
	}
	return out
}

func lines(s string, keep bool) []Span {
	var out []Span
	at := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch r {
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		case '\r':
			if strings.HasPrefix(s[i+1:], "\n") {
				n = 2
			}
		default:
			i += n
			continue
		}
		to := i
		if keep {
			to = i + n
		}
		out = append(out, Span{at, to})
		i += n
		at = i
	}
	if at < len(s) {
		out = append(out, Span{at, len(s)})
	}
	return out
}

func splitlinesMethod(r *run, v Value, a args) Value {
	w := viewOf(v.AsString())
	cuts := lines(w.text, a.truth(0, "keepends", false))
	r.made(16 * len(cuts))
	return w.parts(cuts)
}
