package template

import (
	"math"
	"slices"
	"strings"
)

// equal is Python's ==; marks do not count. Its work is counted.
func (r *run) equal(x, y Value) bool {
	r.spend(1)
	if r.levels++; r.levels > maxCompared {
		panic(limit("its lists nest too deeply"))
	}
	ok := r.same(x, y)
	r.levels--
	return ok
}

func (r *run) same(x, y Value) bool {
	switch a := x.v.(type) {
	case string:
		b, ok := y.v.(string)
		return ok && plain(a) == plain(b)
	case *List:
		b, ok := y.v.(*List)
		return ok && a.tuple == b.tuple && slices.EqualFunc(a.Items, b.Items, r.equal)
	case *Dict:
		b, ok := y.v.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for _, k := range a.Keys {
			if v, ok := b.Get(k); !ok || !r.equal(a.Data[k], v) {
				return false
			}
		}
		return true
	}
	if number(x) && number(y) {
		return sameNumber(x, y)
	}
	return x.v == y.v
}

// sameNumber compares numbers without rounding an integer.
func sameNumber(x, y Value) bool {
	if x.IsFloat() {
		x, y = y, x
	}
	n, whole := integer(x)
	m, both := integer(y)
	switch f := float(y); {
	case both:
		return n == m
	case whole:
		return f >= -0x1p63 && f < 0x1p63 && f == math.Trunc(f) && n == int64(f)
	default:
		return float(x) == f
	}
}

func eq(r *run, x, y Value) bool { return r.equal(x, y) }
func ne(r *run, x, y Value) bool { return !r.equal(x, y) }

// order makes the relation of an operator.
func order(op string) relation {
	return func(r *run, x, y Value) bool {
		n, ok := r.compare(op, x, y)
		return ok && (n < 0 && op[0] == '<' || n > 0 && op[0] == '>' || n == 0 && len(op) == 2)
	}
}

// compare returns the order of two values: negative, zero, positive; false where they have none (a
// NaN).
func (r *run) compare(op string, x, y Value) (int, bool) {
	undefined(x, y)
	switch {
	case x.IsString() && y.IsString():
		return strings.Compare(plain(x.AsString()), plain(y.AsString())), true
	case x.IsList() && y.IsList() && isTuple(x) == isTuple(y):
		a, b := x.AsList().Items, y.AsList().Items
		for i := range min(len(a), len(b)) {
			if !r.equal(a[i], b[i]) {
				return r.compare(op, a[i], b[i])
			}
		}
		return len(a) - len(b), true
	case number(x) && number(y):
		if sameNumber(x, y) {
			return 0, true
		}
		a, ok1 := integer(x)
		b, ok2 := integer(y)
		if ok1 && ok2 {
			if a < b {
				return -1, true
			}
			return 1, true
		}
		f, g := float(x), float(y)
		if f < g {
			return -1, true
		}
		return 1, f > g
	}
	panic(faultf("'%s' not supported between instances of '%s' and '%s'", op, typeName(x), typeName(y)))
}

// in is "x in y".
func in(r *run, x, y Value) bool {
	switch y := y.v.(type) {
	case nil:
		return false
	case string:
		if !x.IsString() {
			panic(faultf("'in <string>' requires string as left operand, not %s", typeName(x)))
		}
		return strings.Contains(plain(y), plain(x.AsString()))
	case *List:
		return slices.ContainsFunc(y.Items, func(item Value) bool { return r.equal(x, item) })
	case *Dict:
		if unhashable(x) {
			panic(faultf("unhashable type: '%s'", typeName(x)))
		}
		_, ok := y.Get(plain(r.printed(x)))
		return ok && !x.IsUndefined()
	}
	panic(faultf("argument of type '%s' is not iterable", typeName(y)))
}

// unhashable reports whether Python refuses v as a key.
func unhashable(v Value) bool { return v.IsDict() || v.IsList() && !isTuple(v) }
