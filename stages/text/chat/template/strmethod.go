package template

import (
	"strings"
	"unicode/utf8"
)

// methodFunc is a method of v.
type methodFunc func(r *run, v Value, a args) Value

// stringMethods are the methods of Python's str, without those that return bytes.
var stringMethods map[string]methodFunc

func init() {
	stringMethods = map[string]methodFunc{
		"capitalize": textMethod(capitalize), "casefold": textMethod(lower), "lower": textMethod(lower),
		"swapcase": textMethod(swapcase), "title": textMethod(title), "upper": textMethod(upper),
		"center": justify('^'), "ljust": justify('<'), "rjust": justify('>'),
		"count": countMethod, "endswith": affix(false), "startswith": affix(true),
		"find": find(false, false), "index": find(false, true), "rfind": find(true, false), "rindex": find(true, true),
		"format": formatMethod, "join": joinMethod, "replace": replace,
		"isalnum": whole(isAlnum), "isalpha": whole(isAlpha), "isdecimal": whole(isDecimal),
		"isdigit": whole(isDecimal), "isnumeric": whole(isNumeric), "isspace": whole(isSpace),
		"islower": caseMethod("lower"), "isupper": caseMethod("upper"),
		"lstrip": stripMethod(true, false), "rstrip": stripMethod(false, true), "strip": stripMethod(true, true),
		"partition": partition(false), "rpartition": partition(true),
		"removeprefix": removeAffix(true), "removesuffix": removeAffix(false),
		"split": splitMethod(false), "rsplit": splitMethod(true), "splitlines": splitlinesMethod,
		"zfill": zfill,
	}
}

// textMethod makes a method of a function on the string.
func textMethod(f func(string) string) methodFunc {
	return func(r *run, v Value, _ args) Value { return r.str(f(v.AsString())) }
}

// stringArg is argument i, which must be a string; its marks are removed.
func stringArg(a args, i int, name string) string {
	v, ok := a.at(i, name)
	if !ok || !v.IsString() {
		panic(faultf("must be str, not %s", typeName(v)))
	}
	return plain(v.AsString())
}

func stripMethod(left, right bool) methodFunc {
	return func(_ *run, v Value, a args) Value {
		return strip(v.AsString(), a.or(0, "chars", None()), left, right)
	}
}

// strip removes white space, or the characters of chars, at the ends.
func strip(s string, chars Value, left, right bool) Value {
	drop := isSpace
	switch {
	case chars.IsString():
		set := plain(chars.AsString())
		drop = func(r rune) bool { return strings.ContainsRune(set, r) }
	case !chars.IsNone():
		panic(faultf("strip arg must be None or str"))
	}
	v := viewOf(s)
	from, to := 0, len(v.text)
	if left {
		from = to - len(strings.TrimLeftFunc(v.text, drop))
	}
	if right {
		to = max(from, len(strings.TrimRightFunc(v.text, drop)))
	}
	return NewString(v.cut(from, to))
}

// within resolves optional start and end arguments (from argument i on) to a byte range of text; ok
// is false if start is after end.
func within(text string, a args, i int) (from, to int, ok bool) {
	n := utf8.RuneCountInString(text)
	start, stop := a.or(i, "start", None()), a.or(i+1, "end", None())
	at, end, _ := bounds([]Value{start, stop, None()}, n)
	if at > end {
		return 0, 0, false
	}
	if s, isInt := integer(start); isInt && s > int64(n) {
		return 0, 0, false
	}
	from = byteOffset(text, at)
	return from, from + byteOffset(text[from:], end-at), true
}

func affix(prefix bool) methodFunc {
	has := strings.HasSuffix
	if prefix {
		has = strings.HasPrefix
	}
	return func(_ *run, v Value, a args) Value {
		text := plain(v.AsString())
		from, to, ok := within(text, a, 1)
		list := []Value{a.or(0, "", Undefined())}
		if list[0].IsList() && isTuple(list[0]) {
			list = list[0].AsList().Items
		}
		for _, p := range list {
			if !p.IsString() {
				panic(faultf("first arg must be str or a tuple of str, not %s", typeName(p)))
			}
			if ok && has(text[from:to], plain(p.AsString())) {
				return NewBool(true)
			}
		}
		return NewBool(false)
	}
}

func find(last, must bool) methodFunc {
	index := strings.Index
	if last {
		index = strings.LastIndex
	}
	return func(_ *run, v Value, a args) Value {
		text := plain(v.AsString())
		what := stringArg(a, 0, "")
		from, to, ok := within(text, a, 1)
		if ok {
			if i := index(text[from:to], what); i >= 0 {
				return NewInt(int64(utf8.RuneCountInString(text[:from+i])))
			}
		}
		if must {
			panic(faultf("substring not found"))
		}
		return NewInt(-1)
	}
}

func countMethod(_ *run, v Value, a args) Value {
	text := plain(v.AsString())
	what := stringArg(a, 0, "")
	from, to, ok := within(text, a, 1)
	if !ok {
		return NewInt(0)
	}
	return NewInt(int64(strings.Count(text[from:to], what)))
}

// replace is str.replace; the new text keeps its own marks.
func replace(r *run, v Value, a args) Value {
	old := stringArg(a, 0, "old")
	by := a.or(1, "new", Undefined())
	if !by.IsString() {
		panic(faultf("replace() argument 2 must be str, not %s", typeName(by)))
	}
	w := viewOf(v.AsString())
	left := strings.Count(w.text, old)
	if n, ok := integer(a.or(2, "count", None())); ok && n >= 0 {
		left = int(min(int64(left), n))
	}
	if left == 0 {
		return v
	}
	r.made(len(v.AsString()) + left*len(by.AsString()))
	var b strings.Builder
	at := 0
	for i := 0; left > 0; left-- {
		j := strings.Index(w.text[i:], old)
		b.WriteString(w.cut(at, i+j))
		b.WriteString(by.AsString())
		at = i + j + len(old)
		i = at
		if old == "" && i < len(w.text) { // between all characters
			i += byteOffset(w.text[i:], 1)
		}
	}
	b.WriteString(w.cut(at, len(w.text)))
	return NewString(b.String())
}

func joinMethod(r *run, v Value, a args) Value {
	list := iterable(r, a.or(0, "", None()))
	for i, item := range list {
		if !item.IsString() {
			panic(faultf("sequence item %d: expected str instance, %s found", i, typeName(item)))
		}
	}
	return join(r, args{pos: []Value{NewList(list), v}})
}

func partition(last bool) methodFunc {
	return func(_ *run, v Value, a args) Value {
		sep := stringArg(a, 0, "")
		if sep == "" {
			panic(faultf("empty separator"))
		}
		w := viewOf(v.AsString())
		i, parts := strings.Index(w.text, sep), []Value{v, empty, empty}
		if last {
			i, parts = strings.LastIndex(w.text, sep), []Value{empty, empty, v}
		}
		if i >= 0 {
			parts[0] = NewString(w.cut(0, i))
			parts[1] = NewString(w.cut(i, i+len(sep)))
			parts[2] = NewString(w.cut(i+len(sep), len(w.text)))
		}
		return newTuple(parts...)
	}
}

func removeAffix(prefix bool) methodFunc {
	return func(_ *run, v Value, a args) Value {
		s := stringArg(a, 0, "")
		w := viewOf(v.AsString())
		switch {
		case prefix && strings.HasPrefix(w.text, s):
			return NewString(w.cut(len(s), len(w.text)))
		case !prefix && strings.HasSuffix(w.text, s):
			return NewString(w.cut(0, len(w.text)-len(s)))
		}
		return v
	}
}

// whole makes a method that reports whether all characters, at least one, are so.
func whole(is func(rune) bool) methodFunc {
	return func(_ *run, v Value, _ args) Value {
		s := plain(v.AsString())
		return NewBool(s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0)
	}
}

func caseMethod(test string) methodFunc {
	return func(r *run, v Value, _ args) Value {
		return NewBool(tests[test](r, args{pos: []Value{v}}))
	}
}

// justify pads a string to a width.
func justify(align byte) methodFunc {
	return func(r *run, v Value, a args) Value {
		width, ok := integer(a.or(0, "width", None()))
		if !ok {
			panic(faultf("a width must be an integer"))
		}
		fill := a.or(1, "fillchar", NewString(" "))
		if !fill.IsString() || utf8.RuneCountInString(plain(fill.AsString())) != 1 {
			panic(faultf("the fill character must be exactly one character long"))
		}
		s := v.AsString()
		n := width - int64(utf8.RuneCountInString(plain(s)))
		if n <= 0 {
			return v
		}
		if n > maxRange {
			panic(faultf("width too large"))
		}
		left := 0
		switch align {
		case '>':
			left = int(n)
		case '^':
			left = int(n/2 + n&width&1)
		}
		pad := fill.AsString()
		return r.str(strings.Repeat(pad, left) + s + strings.Repeat(pad, int(n)-left))
	}
}

// zfill pads a number with zeros after its sign.
func zfill(r *run, v Value, a args) Value {
	w := viewOf(v.AsString())
	width, ok := integer(a.or(0, "width", None()))
	if !ok || width > maxRange {
		panic(faultf("a width must be an integer, and not too large"))
	}
	sign := 0
	if strings.HasPrefix(w.text, "-") || strings.HasPrefix(w.text, "+") {
		sign = 1
	}
	n := max(0, int(width)-utf8.RuneCountInString(w.text))
	return r.str(w.cut(0, sign) + strings.Repeat("0", n) + w.cut(sign, len(w.text)))
}
