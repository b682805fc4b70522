package template

import (
	"math"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// check is a Jinja2 test: what stands behind "is".
type check = func(r *run, a args) (bool, error)

var tests map[string]check

func init() {
	kind := func(f func(jinja.Value) bool) check {
		return func(_ *run, a args) (bool, error) { return f(a.pos[0]), nil }
	}
	named := func(known func(string) bool) check {
		return kind(func(v jinja.Value) bool { return v.IsString() && known(plain(v.AsString())) })
	}
	comparing := func(f function) check {
		return func(r *run, a args) (bool, error) {
			if len(a.pos) < 2 {
				return false, faultf("a test is missing its argument")
			}
			v, err := f(r, a)
			return err == nil && v.IsTruthy(), err
		}
	}
	tests = map[string]check{
		"defined":     kind(func(v jinja.Value) bool { return !v.IsUndefined() }),
		"undefined":   kind(jinja.Value.IsUndefined),
		"none":        kind(jinja.Value.IsNone),
		"boolean":     kind(jinja.Value.IsBool),
		"integer":     kind(func(v jinja.Value) bool { return typeName(v) == "int" }),
		"float":       kind(jinja.Value.IsFloat),
		"number":      kind(func(v jinja.Value) bool { return number(v) || typeName(v) == "int" }),
		"string":      kind(jinja.Value.IsString),
		"mapping":     kind(isMapping),
		"iterable":    kind(func(v jinja.Value) bool { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined() }),
		"sequence":    kind(func(v jinja.Value) bool { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined() }),
		"callable":    kind(func(v jinja.Value) bool { return v.IsUndefined() || typeName(v) == "function" }),
		"true":        kind(func(v jinja.Value) bool { return v.IsBool() && v.AsBool() }),
		"false":       kind(func(v jinja.Value) bool { return v.IsBool() && !v.AsBool() }),
		"escaped":     kind(func(jinja.Value) bool { return false }),
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
	for op, names := range map[string][]string{
		"<": {"lt", "lessthan"}, "<=": {"le"}, ">": {"gt", "greaterthan"}, ">=": {"ge"},
	} {
		for _, name := range names {
			tests[name] = comparing(order(op))
		}
	}
	for _, name := range []string{"eq", "equalto"} {
		tests[name] = comparing(eq)
	}
	tests["ne"] = comparing(ne)
	// The names in select("==", x) and its like.
	for name, alias := range map[string]string{"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"} {
		tests[name] = tests[alias]
	}
}

// cased tells of a string whether it has letters of one case and none of the
// other.
func cased(has, not func(rune) bool) check {
	return func(r *run, a args) (bool, error) {
		s := plain(r.printed(a.pos[0]))
		return strings.IndexFunc(s, has) >= 0 && strings.IndexFunc(s, not) < 0, nil
	}
}

func parity(want float64) check {
	return func(r *run, a args) (bool, error) {
		v, err := arithmetic("%", a.pos[0], jinja.NewInt(2))
		return err == nil && float(v) == want, err
	}
}

func divisible(_ *run, a args) (bool, error) {
	if len(a.pos) < 2 {
		return false, faultf("a test is missing its argument")
	}
	v, err := arithmetic("%", a.pos[0], a.pos[1])
	return err == nil && float(v) == 0, err
}

// sameAs is Python's "is": the same object, or the same small value.
func sameAs(r *run, a args) (jinja.Value, error) {
	x, y := a.pos[0], a.pos[1]
	switch {
	case typeName(x) != typeName(y):
		return jinja.NewBool(false), nil
	case x.IsList():
		return jinja.NewBool(x.AsList() == y.AsList()), nil
	case x.IsDict():
		return jinja.NewBool(x.AsDict() == y.AsDict()), nil
	case x.IsFloat() && math.IsNaN(x.AsFloat()):
		return jinja.NewBool(false), nil
	}
	return jinja.NewBool(r.equal(x, y)), nil
}
