package template

import (
	"strings"

	"github.com/ardanlabs/jinja"
)

// equal is Python's ==; marks do not count. Its work is counted, and it ends once
// the budget is spent; bind then ends the render.
func (r *run) equal(x, y jinja.Value) bool {
	if r.steps--; r.steps < 0 {
		return false
	}
	switch {
	case x.IsString() && y.IsString():
		return plain(x.AsString()) == plain(y.AsString())
	case x.IsList() && y.IsList():
		a, b := x.AsList(), y.AsList()
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Items {
			if !r.equal(a.Items[i], b.Items[i]) {
				return false
			}
		}
		return isTuple(x) == isTuple(y)
	case x.IsDict() && y.IsDict():
		a, b := x.AsDict(), y.AsDict()
		if a.Len() != b.Len() {
			return false
		}
		for _, k := range a.Keys {
			if v, ok := b.Get(k); !ok || !r.equal(a.Data[k], v) {
				return false
			}
		}
		return true
	}
	return x.Equals(y)
}

func eq(r *run, a args) (jinja.Value, error) { return jinja.NewBool(r.equal(a.pos[0], a.pos[1])), nil }
func ne(r *run, a args) (jinja.Value, error) { return jinja.NewBool(!r.equal(a.pos[0], a.pos[1])), nil }

// order makes the function of a comparison.
func order(op string) function {
	return func(r *run, a args) (jinja.Value, error) {
		n, ok, err := r.compare(op, a.pos[0], a.pos[1])
		if err != nil {
			return empty, err
		}
		return jinja.NewBool(ok && (n < 0 && op[0] == '<' || n > 0 && op[0] == '>' || n == 0 && len(op) == 2)), nil
	}
}

// compare is the order of two values: negative, zero, positive; false where
// they have none (a NaN).
func (r *run) compare(op string, x, y jinja.Value) (int, bool, error) {
	if err := undefined(x, y); err != nil {
		return 0, false, err
	}
	switch {
	case x.IsString() && y.IsString():
		return strings.Compare(plain(x.AsString()), plain(y.AsString())), true, nil
	case x.IsList() && y.IsList() && isTuple(x) == isTuple(y):
		a, b := x.AsList().Items, y.AsList().Items
		for i := range min(len(a), len(b)) {
			if !r.equal(a[i], b[i]) {
				return r.compare(op, a[i], b[i])
			}
		}
		return len(a) - len(b), true, nil
	case number(x) && number(y):
		if x.Equals(y) {
			return 0, true, nil
		}
		a, ok1 := integer(x)
		b, ok2 := integer(y)
		if ok1 && ok2 {
			if a < b {
				return -1, true, nil
			}
			return 1, true, nil
		}
		f, g := float(x), float(y)
		if f < g {
			return -1, true, nil
		}
		return 1, f > g, nil
	}
	return 0, false, faultf("'%s' not supported between instances of '%s' and '%s'", op, typeName(x), typeName(y))
}

// in is "x in y".
func in(r *run, a args) (jinja.Value, error) {
	x, y := a.pos[0], a.pos[1]
	switch {
	case y.IsString():
		if !x.IsString() {
			return empty, faultf("'in <string>' requires string as left operand, not %s", typeName(x))
		}
		return jinja.NewBool(strings.Contains(plain(y.AsString()), plain(x.AsString()))), nil
	case y.IsList():
		for _, item := range y.AsList().Items {
			if err := r.spend(1); err != nil {
				return empty, err
			}
			if r.equal(x, item) {
				return jinja.NewBool(true), nil
			}
		}
		return jinja.NewBool(false), nil
	case y.IsDict():
		if unhashable(x) {
			return empty, faultf("unhashable type: '%s'", typeName(x))
		}
		return jinja.NewBool(!x.IsUndefined() && y.AsDict().Has(plain(r.printed(x)))), nil
	case y.IsUndefined():
		return jinja.NewBool(false), nil
	}
	return empty, faultf("argument of type '%s' is not iterable", typeName(y))
}

// unhashable tells whether Python refuses v as a key.
func unhashable(v jinja.Value) bool { return v.IsDict() || v.IsList() && !isTuple(v) }
