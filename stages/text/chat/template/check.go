package template

import (
	"strings"
	"unicode"
)

// check is a Jinja2 test: the part after "is".
type check = func(r *run, a args) bool

var tests map[string]check

func init() {
	kind := func(f func(Value) bool) check {
		return func(_ *run, a args) bool { return f(a.pos[0]) }
	}
	named := func(known func(string) bool) check {
		return kind(func(v Value) bool { return v.IsString() && known(plain(v.AsString())) })
	}
	comparing := func(f relation) check {
		return func(r *run, a args) bool {
			if len(a.pos) < 2 {
				panic(faultf("a test is missing its argument"))
			}
			return f(r, a.pos[0], a.pos[1])
		}
	}
	tests = map[string]check{
		"defined":     kind(func(v Value) bool { return !v.IsUndefined() }),
		"undefined":   kind(Value.IsUndefined),
		"none":        kind(Value.IsNone),
		"boolean":     kind(Value.IsBool),
		"integer":     kind(func(v Value) bool { return typeName(v) == "int" }),
		"float":       kind(Value.IsFloat),
		"number":      kind(func(v Value) bool { return number(v) || typeName(v) == "int" }),
		"string":      kind(Value.IsString),
		"mapping":     kind(Value.IsDict),
		"iterable":    kind(func(v Value) bool { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined() }),
		"sequence":    kind(func(v Value) bool { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined() }),
		"callable":    kind(func(v Value) bool { return v.IsUndefined() || typeName(v) == "function" }),
		"true":        kind(func(v Value) bool { return v.IsBool() && v.AsBool() }),
		"false":       kind(func(v Value) bool { return v.IsBool() && !v.AsBool() }),
		"escaped":     kind(func(Value) bool { return false }),
		"upper":       cased(unicode.IsUpper, unicode.IsLower),
		"lower":       cased(unicode.IsLower, unicode.IsUpper),
		"filter":      named(func(s string) bool { return filters[s] != nil }),
		"test":        named(func(s string) bool { return tests[s] != nil }),
		"odd":         parity(1),
		"even":        parity(0),
		"divisibleby": divisible,
		"sameas":      comparing(sameAs),
		"in":          comparing(in),
	}
	for name, alias := range map[string]string{
		"eq": "==", "equalto": "==", "ne": "!=", "lt": "<", "lessthan": "<", "le": "<=", "gt": ">", "greaterthan": ">", "ge": ">=",
	} {
		tests[name] = comparing(comparisons[alias])
		tests[alias] = tests[name] // select("==", x)
	}
}

// cased reports whether a string has letters of one case and none of the other.
func cased(has, not func(rune) bool) check {
	return func(r *run, a args) bool {
		s := plain(r.printed(a.pos[0]))
		return strings.IndexFunc(s, has) >= 0 && strings.IndexFunc(s, not) < 0
	}
}

func parity(want float64) check {
	return func(r *run, a args) bool {
		return float(arithmetic("%", a.pos[0], NewInt(2))) == want
	}
}

func divisible(_ *run, a args) bool {
	if len(a.pos) < 2 {
		panic(faultf("a test is missing its argument"))
	}
	return float(arithmetic("%", a.pos[0], a.pos[1])) == 0
}

// sameAs is Python's "is": the same object, or the same small value.
func sameAs(r *run, x, y Value) bool {
	switch {
	case typeName(x) != typeName(y):
		return false
	case x.IsList(), x.IsDict():
		return x.v == y.v
	}
	return r.equal(x, y)
}
