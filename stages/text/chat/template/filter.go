package template

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filters are Jinja2's, except those that make HTML, shuffle, or print sizes; tojson is
// transformers' (json.go).
var filters map[string]function

func init() {
	filters = map[string]function{
		"abs": absolute, "attr": attrFilter, "batch": batch, "capitalize": textFilter(capitalize),
		"center": center, "count": length, "d": fallback, "default": fallback, "dictsort": dictsort,
		"e": textFilter(escape), "escape": textFilter(escape), "first": first, "float": toFloat,
		"forceescape": textFilter(escape), "format": formatFilter, "indent": indent, "int": toInt,
		"items": itemsFilter, "join": join, "last": last, "length": length, "list": listFilter,
		"lower": textFilter(lower), "map": mapFilter, "max": extremum(1), "min": extremum(-1),
		"reject": choose(false, false), "rejectattr": choose(true, false), "replace": replaceFilter,
		"reverse": reverse, "round": round, "safe": stringFilter, "select": choose(false, true),
		"selectattr": choose(true, true), "slice": sliceFilter, "sort": sortFilter, "string": stringFilter,
		"sum": sum, "title": textFilter(titleWords), "tojson": toJSON, "trim": trimFilter,
		"unique": unique, "upper": textFilter(upper), "wordcount": wordcount,
	}
}

// textFilter makes a filter of a function on the printed value.
func textFilter(f func(string) string) function {
	return func(r *run, a args) Value { return r.str(f(r.printed(a.pos[0]))) }
}

func stringFilter(r *run, a args) Value {
	if a.pos[0].IsString() {
		return a.pos[0]
	}
	return r.str(r.printed(a.pos[0]))
}

// length is Python's len.
func length(_ *run, a args) Value {
	v := a.pos[0]
	n := 0
	switch {
	case v.IsString():
		n = utf8.RuneCountInString(plain(v.AsString()))
	case v.IsList():
		n = v.AsList().Len()
	case v.IsDict():
		n = v.AsDict().Len()
	case !v.IsUndefined():
		panic(faultf("object of type '%s' has no len()", typeName(v)))
	}
	return NewInt(int64(n))
}

func fallback(_ *run, a args) Value {
	v := a.pos[0]
	if v.IsUndefined() || a.truth(2, "boolean", false) && !v.IsTruthy() {
		return a.or(1, "default_value", empty)
	}
	return v
}

func trimFilter(r *run, a args) Value {
	return strip(r.printed(a.pos[0]), a.or(1, "chars", None()), true, true)
}

func replaceFilter(r *run, a args) Value {
	if a.or(1, "old", Undefined()).IsUndefined() || a.or(2, "new", Undefined()).IsUndefined() {
		panic(faultf("replace needs what to replace and by what"))
	}
	old := NewString(r.printed(a.or(1, "old", empty)))
	by := NewString(r.printed(a.or(2, "new", empty)))
	return replace(r, NewString(r.printed(a.pos[0])), args{pos: []Value{old, by, a.or(3, "count", None())}})
}

func join(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	sep := r.printed(a.or(1, "d", empty))
	by, has := a.at(2, "attribute")
	parts := make([]string, len(list))
	n := 0
	for i, v := range list {
		if has && !by.IsNone() {
			v = path(r, v, by, nil)
		}
		parts[i] = r.printed(v)
		n += len(parts[i]) + len(sep)
	}
	r.made(n)
	return NewString(strings.Join(parts, sep))
}

func indent(r *run, a args) Value {
	if !a.pos[0].IsString() {
		panic(faultf("indent needs a string, not %s", typeName(a.pos[0])))
	}
	width := a.or(1, "width", NewInt(4))
	pad := ""
	if n, ok := integer(width); ok {
		pad = strings.Repeat(" ", int(min(max(n, 0), 1000)))
	} else {
		pad = r.printed(width)
	}
	s := a.pos[0].AsString()
	lines := splitLines(s+"\n", false)
	r.made(len(s) + len(lines)*(len(pad)+1))
	var b strings.Builder
	if a.truth(2, "first", false) {
		b.WriteString(pad)
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if line != "" || a.truth(3, "blank", false) {
				b.WriteString(pad)
			}
		}
		b.WriteString(line)
	}
	return NewString(b.String())
}

func center(r *run, a args) Value {
	return justify('^')(r, NewString(r.printed(a.pos[0])), args{pos: []Value{a.or(1, "width", NewInt(80))}})
}

func wordcount(r *run, a args) Value {
	words := strings.FieldsFunc(plain(r.printed(a.pos[0])), func(r rune) bool { return r != '_' && !isAlnum(r) })
	return NewInt(int64(len(words)))
}

func formatFilter(r *run, a args) Value {
	return percent(r, r.printed(a.pos[0]), newTuple(a.pos[1:]...))
}

func attrFilter(r *run, a args) Value {
	if len(a.pos) < 2 || !a.pos[1].IsString() {
		panic(faultf("attr needs the name of an attribute"))
	}
	undefined(a.pos[0])
	return bound(a.pos[0], plain(a.pos[1].AsString()))
}

func absolute(_ *run, a args) Value {
	v := a.pos[0]
	if n, ok := integer(v); ok && n != math.MinInt64 {
		return NewInt(max(n, -n))
	}
	if !v.IsFloat() {
		panic(faultf("bad operand type for abs(): '%s'", typeName(v)))
	}
	return NewFloat(math.Abs(v.AsFloat()))
}

// toInt is int(value), or the default where that fails.
func toInt(_ *run, a args) Value {
	v := a.pos[0]
	if n, ok := integer(v); ok {
		return NewInt(n)
	}
	undefined(v)
	if is[digits](v) {
		return v
	}
	f := math.NaN()
	if v.IsString() {
		s := strings.TrimFunc(plain(v.AsString()), isSpace)
		base, _ := integer(a.or(2, "base", NewInt(10)))
		if n, ok := parseInt(s, int(base)); ok {
			return NewInt(n)
		}
		if g, err := strconv.ParseFloat(s, 64); err == nil {
			f = g
		}
	} else if v.IsFloat() {
		f = v.AsFloat()
	}
	if f = math.Trunc(f); f >= -0x1p63 && f < 0x1p63 {
		return NewInt(int64(f))
	}
	return a.or(1, "default", NewInt(0))
}

// parseInt reads an integer as Python's int(s, base) does.
func parseInt(s string, base int) (int64, bool) {
	sign := ""
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		sign, s = s[:1], s[1:]
	}
	if p := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]; p != "" && strings.HasPrefix(strings.ToLower(s), p) {
		s = s[2:]
	}
	if base < 2 || base > 36 {
		return 0, false
	}
	n, err := strconv.ParseInt(sign+s, base, 64)
	return n, err == nil
}

func toFloat(_ *run, a args) Value {
	v := a.pos[0]
	if number(v) {
		return NewFloat(float(v))
	}
	n, ok := v.v.(digits)
	text := string(n)
	if v.IsString() {
		text, ok = strings.TrimFunc(plain(v.AsString()), isSpace), true
	}
	if ok {
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return NewFloat(f)
		}
	}
	undefined(v)
	return a.or(1, "default", NewFloat(0))
}

func round(r *run, a args) Value {
	v := a.pos[0]
	if !number(v) {
		panic(faultf("type %s doesn't define __round__ method", typeName(v)))
	}
	digits, _ := integer(a.or(1, "precision", NewInt(0)))
	if digits < 0 || digits > 300 {
		panic(faultf("round: precision must be 0 to 300"))
	}
	f, scale := float(v), math.Pow(10, float64(digits))
	switch method := r.printed(a.or(2, "method", NewString("common"))); method {
	case "ceil":
		return NewFloat(math.Ceil(f*scale) / scale)
	case "floor":
		return NewFloat(math.Floor(f*scale) / scale)
	case "common":
		if n, ok := integer(v); ok {
			return NewInt(n)
		}
		// Decimal digits of the exact value, ties to even, as Python's round.
		n, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
		if err != nil {
			n = f
		}
		return NewFloat(n)
	}
	panic(faultf("method must be common, ceil or floor"))
}
