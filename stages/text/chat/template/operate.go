package template

import (
	"math"
	"strings"
)

// undefined is the error of an operation on an undefined value.
func undefined(v ...Value) error {
	for _, v := range v {
		if v.IsUndefined() {
			return faultf("an undefined value is used in an operation")
		}
	}
	return nil
}

func badOperands(op string, a, b Value) error {
	return faultf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func add(r *run, x, y Value) (Value, error) {
	if err := undefined(x, y); err != nil {
		return empty, err
	}
	switch {
	case x.IsString() && y.IsString():
		if err := r.made(len(x.AsString()) + len(y.AsString())); err != nil {
			return empty, err
		}
		return NewString(x.AsString() + y.AsString()), nil
	case x.IsString():
		return empty, faultf("can only concatenate str (not %q) to str", typeName(y))
	case x.IsList() && y.IsList() && isTuple(x) == isTuple(y):
		items := append(append([]Value(nil), x.AsList().Items...), y.AsList().Items...)
		if isTuple(x) {
			return newTuple(items...), r.made(16 * len(items))
		}
		return NewList(items), r.made(16 * len(items))
	case x.IsList():
		return empty, faultf("can only concatenate list (not %q) to list", typeName(y))
	}
	return arithmetic("+", x, y)
}

func sub(_ *run, x, y Value) (Value, error)      { return arithmetic("-", x, y) }
func div(_ *run, x, y Value) (Value, error)      { return arithmetic("/", x, y) }
func floordiv(_ *run, x, y Value) (Value, error) { return arithmetic("//", x, y) }
func pow(_ *run, x, y Value) (Value, error)      { return arithmetic("** or pow()", x, y) }

func mul(r *run, x, y Value) (Value, error) {
	if err := undefined(x, y); err != nil {
		return empty, err
	}
	times, many := y, x
	if y.IsString() || y.IsList() {
		times, many = x, y
	}
	n, ok := integer(times)
	n = max(n, 0)
	switch {
	case many.IsString() && ok:
		if n > int64(r.widest) {
			n = int64(r.widest) + 1
		}
		if err := r.made(min(len(many.AsString())*int(n), math.MaxInt32)); err != nil && many.AsString() != "" {
			return empty, err
		}
		return NewString(strings.Repeat(many.AsString(), int(n))), nil
	case many.IsList() && ok:
		var items []Value
		if l := many.AsList(); l.Len() > 0 {
			if n > int64(r.widest/16/l.Len()) {
				return empty, r.made(r.widest + 1)
			}
			for range n {
				items = append(items, l.Items...)
			}
		}
		if isTuple(many) {
			return newTuple(items...), r.made(16 * len(items))
		}
		return NewList(items), r.made(16 * len(items))
	}
	return arithmetic("*", x, y)
}

func mod(r *run, x, y Value) (Value, error) {
	if x.IsString() {
		return percent(r, x.AsString(), y)
	}
	return arithmetic("%", x, y)
}

// arithmetic is an operation on two numbers.
func arithmetic(op string, x, y Value) (Value, error) {
	if err := undefined(x, y); err != nil {
		return empty, err
	}
	if !number(x) || !number(y) {
		return empty, badOperands(op, x, y)
	}
	a, ok1 := integer(x)
	b, ok2 := integer(y)
	if ok1 && ok2 && op != "/" && !(op[0] == '*' && len(op) > 1 && b < 0) {
		return integers(op, a, b)
	}
	f, g := float(x), float(y)
	switch op {
	case "+":
		return NewFloat(f + g), nil
	case "-":
		return NewFloat(f - g), nil
	case "*":
		return NewFloat(f * g), nil
	case "/", "//", "%":
		if g == 0 {
			return empty, faultf("division by zero")
		}
	default:
		return NewFloat(math.Pow(f, g)), nil
	}
	if op == "/" {
		return NewFloat(f / g), nil
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	if op == "%" {
		return NewFloat(m), nil
	}
	return NewFloat(math.Round((f - m) / g)), nil
}

// integers is an operation on two integers, refused where the result does not
// fit 64 bits (Python's have no bound).
func integers(op string, a, b int64) (Value, error) {
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
			return empty, faultf("integer division or modulo by zero")
		}
		if a == math.MinInt64 && b == -1 {
			return empty, faultf("integer too large")
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
		return empty, faultf("integer too large")
	}
	return NewInt(n), nil
}

func product(a, b int64) (int64, bool) {
	n := a * b
	ok := a == 0 || n/a == b && !(a == -1 && b == math.MinInt64)
	return n, ok
}

// neg is the minus sign of x.
func neg(_ *run, _, x Value) (Value, error) {
	if err := undefined(x); err != nil {
		return empty, err
	}
	if x.IsFloat() {
		return NewFloat(-x.AsFloat()), nil
	}
	n, ok := integer(x)
	if !ok {
		return empty, faultf("bad operand type for unary -: '%s'", typeName(x))
	}
	return integers("-", 0, n)
}

// pos is the plus sign of x.
func pos(_ *run, _, x Value) (Value, error) {
	if err := undefined(x); err != nil {
		return empty, err
	}
	if n, ok := integer(x); ok {
		return NewInt(n), nil
	}
	if !x.IsFloat() {
		return empty, faultf("bad operand type for unary +: '%s'", typeName(x))
	}
	return x, nil
}

// concat is ~.
func concat(r *run, a args) (Value, error) {
	n := 0
	parts := make([]string, len(a.pos))
	for i, v := range a.pos {
		parts[i] = r.printed(v)
		n += len(parts[i])
	}
	if err := r.made(n); err != nil {
		return empty, err
	}
	return NewString(strings.Join(parts, "")), nil
}
