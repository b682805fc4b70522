package template

import (
	"math"
	"slices"
	"strings"
)

// undefined refuses an operation on undefined values.
func undefined(v ...Value) {
	for _, v := range v {
		if v.IsUndefined() {
			panic(faultf("an undefined value is used in an operation"))
		}
	}
}

// like returns a new list, or a tuple where l is one.
func (r *run) like(l *List, items []Value) Value {
	r.made(16 * len(items))
	return Value{&List{items, l.tuple}}
}

func add(r *run, x, y Value) Value {
	undefined(x, y)
	switch {
	case x.IsString() && y.IsString():
		r.made(len(x.AsString()) + len(y.AsString()))
		return NewString(x.AsString() + y.AsString())
	case x.IsString():
		panic(faultf("can only concatenate str (not %q) to str", typeName(y)))
	case x.IsList() && y.IsList() && isTuple(x) == isTuple(y):
		return r.like(x.AsList(), slices.Concat(x.AsList().Items, y.AsList().Items))
	case x.IsList():
		panic(faultf("can only concatenate list (not %q) to list", typeName(y)))
	}
	return arithmetic("+", x, y)
}

func sub(_ *run, x, y Value) Value      { return arithmetic("-", x, y) }
func div(_ *run, x, y Value) Value      { return arithmetic("/", x, y) }
func floordiv(_ *run, x, y Value) Value { return arithmetic("//", x, y) }
func pow(_ *run, x, y Value) Value      { return arithmetic("** or pow()", x, y) }

func mul(r *run, x, y Value) Value {
	undefined(x, y)
	times, many := y, x
	if y.IsString() || y.IsList() {
		times, many = x, y
	}
	n, ok := integer(times)
	n = max(n, 0)
	switch {
	case many.IsString() && ok:
		if many.AsString() == "" {
			return many
		}
		n = min(n, int64(r.widest)+1)
		r.made(min(len(many.AsString())*int(n), math.MaxInt32))
		return NewString(strings.Repeat(many.AsString(), int(n)))
	case many.IsList() && ok:
		l := many.AsList()
		if l.Len() > 0 && n > int64(r.widest/16/l.Len()) {
			r.made(r.widest + 1)
		}
		return r.like(l, slices.Repeat(l.Items, int(n)))
	}
	return arithmetic("*", x, y)
}

func mod(r *run, x, y Value) Value {
	if x.IsString() {
		return percent(r, x.AsString(), y)
	}
	return arithmetic("%", x, y)
}

// arithmetic returns an operation on two numbers.
func arithmetic(op string, x, y Value) Value {
	undefined(x, y)
	if !number(x) || !number(y) {
		panic(faultf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(x), typeName(y)))
	}
	a, ok1 := integer(x)
	b, ok2 := integer(y)
	if ok1 && ok2 && op != "/" && !(op[0] == '*' && len(op) > 1 && b < 0) {
		return integers(op, a, b)
	}
	f, g := float(x), float(y)
	switch op {
	case "+":
		return NewFloat(f + g)
	case "-":
		return NewFloat(f - g)
	case "*":
		return NewFloat(f * g)
	case "/", "//", "%":
		if g == 0 {
			panic(faultf("division by zero"))
		}
	default:
		return NewFloat(math.Pow(f, g))
	}
	if op == "/" {
		return NewFloat(f / g)
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	if op == "%" {
		return NewFloat(m)
	}
	return NewFloat(math.Round((f - m) / g))
}

// integers returns an operation on two integers, refused where the result does not fit 64 bits
// (Python's have no bound).
func integers(op string, a, b int64) Value {
	var n int64
	fits := true
	switch op {
	case "+":
		n = a + b
		fits = (n > a) == (b > 0)
	case "-":
		n = a - b
		fits = (n < a) == (b > 0)
	case "*":
		n, fits = product(a, b)
	case "//", "%":
		if b == 0 {
			panic(faultf("integer division or modulo by zero"))
		}
		if a == math.MinInt64 && b == -1 {
			panic(faultf("integer too large"))
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if n = m; op == "//" {
			n = q
		}
	default:
		n = 1
		for range min(b, 64) {
			if n, fits = product(n, a); !fits {
				break
			}
		}
		fits = fits && (b <= 64 || a >= -1 && a <= 1)
		if b > 64 && a == -1 && b%2 != 0 {
			n = -1
		}
	}
	if !fits {
		panic(faultf("integer too large"))
	}
	return NewInt(n)
}

func product(a, b int64) (int64, bool) {
	n := a * b
	ok := a == 0 || n/a == b && !(a == -1 && b == math.MinInt64)
	return n, ok
}

// neg returns the minus sign of x.
func neg(_ *run, _, x Value) Value {
	undefined(x)
	if x.IsFloat() {
		return NewFloat(-x.AsFloat())
	}
	n, ok := integer(x)
	if !ok {
		panic(faultf("bad operand type for unary -: '%s'", typeName(x)))
	}
	return integers("-", 0, n)
}

// pos returns the plus sign of x.
func pos(_ *run, _, x Value) Value {
	undefined(x)
	if n, ok := integer(x); ok {
		return NewInt(n)
	}
	if !x.IsFloat() {
		panic(faultf("bad operand type for unary +: '%s'", typeName(x)))
	}
	return x
}

// concat is ~.
func concat(r *run, a args) Value {
	n := 0
	parts := make([]string, len(a.pos))
	for i, v := range a.pos {
		parts[i] = r.printed(v)
		n += len(parts[i])
	}
	r.made(n)
	return NewString(strings.Join(parts, ""))
}
