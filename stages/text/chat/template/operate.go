package template

import (
	"math"
	"strings"

	"github.com/ardanlabs/jinja"
)

// undefined is the error of an operation on an undefined value.
func undefined(v ...jinja.Value) error {
	for _, v := range v {
		if v.IsUndefined() {
			return faultf("an undefined value is used in an operation")
		}
	}
	return nil
}

func badOperands(op string, a, b jinja.Value) error {
	return faultf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func add(r *run, a args) (jinja.Value, error) {
	x, y := a.pos[0], a.pos[1]
	if err := undefined(x, y); err != nil {
		return empty, err
	}
	switch {
	case x.IsString() && y.IsString():
		if err := r.made(len(x.AsString()) + len(y.AsString())); err != nil {
			return empty, err
		}
		return jinja.NewString(x.AsString() + y.AsString()), nil
	case x.IsString():
		return empty, faultf("can only concatenate str (not %q) to str", typeName(y))
	case x.IsList() && y.IsList() && isTuple(x) == isTuple(y):
		items := append(append([]jinja.Value(nil), x.AsList().Items...), y.AsList().Items...)
		if isTuple(x) {
			return newTuple(items...), r.made(16 * len(items))
		}
		return jinja.NewList(items), r.made(16 * len(items))
	case x.IsList():
		return empty, faultf("can only concatenate list (not %q) to list", typeName(y))
	}
	return arithmetic("+", x, y)
}

func sub(_ *run, a args) (jinja.Value, error)      { return arithmetic("-", a.pos[0], a.pos[1]) }
func div(_ *run, a args) (jinja.Value, error)      { return arithmetic("/", a.pos[0], a.pos[1]) }
func floordiv(_ *run, a args) (jinja.Value, error) { return arithmetic("//", a.pos[0], a.pos[1]) }
func pow(_ *run, a args) (jinja.Value, error)      { return arithmetic("** or pow()", a.pos[0], a.pos[1]) }

func mul(r *run, a args) (jinja.Value, error) {
	x, y := a.pos[0], a.pos[1]
	if err := undefined(x, y); err != nil {
		return empty, err
	}
	if y.IsString() || y.IsList() {
		x, y = y, x
	}
	n, ok := integer(y)
	n = max(n, 0)
	switch {
	case x.IsString() && ok:
		if n > int64(r.widest) {
			n = int64(r.widest) + 1
		}
		if err := r.made(min(len(x.AsString())*int(n), math.MaxInt32)); err != nil && x.AsString() != "" {
			return empty, err
		}
		return jinja.NewString(strings.Repeat(x.AsString(), int(n))), nil
	case x.IsList() && ok:
		var items []jinja.Value
		if l := x.AsList(); l.Len() > 0 {
			if n > int64(r.widest/16/l.Len()) {
				return empty, r.made(r.widest + 1)
			}
			for range n {
				items = append(items, l.Items...)
			}
		}
		if isTuple(x) {
			return newTuple(items...), r.made(16 * len(items))
		}
		return jinja.NewList(items), r.made(16 * len(items))
	}
	return arithmetic("*", a.pos[0], a.pos[1])
}

func mod(r *run, a args) (jinja.Value, error) {
	if a.pos[0].IsString() {
		return percent(r, a.pos[0].AsString(), a.pos[1])
	}
	return arithmetic("%", a.pos[0], a.pos[1])
}

// arithmetic is an operation on two numbers.
func arithmetic(op string, x, y jinja.Value) (jinja.Value, error) {
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
		return jinja.NewFloat(f + g), nil
	case "-":
		return jinja.NewFloat(f - g), nil
	case "*":
		return jinja.NewFloat(f * g), nil
	case "/", "//", "%":
		if g == 0 {
			return empty, faultf("division by zero")
		}
	default:
		return jinja.NewFloat(math.Pow(f, g)), nil
	}
	if op == "/" {
		return jinja.NewFloat(f / g), nil
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	if op == "%" {
		return jinja.NewFloat(m), nil
	}
	return jinja.NewFloat(math.Round((f - m) / g)), nil
}

// integers is an operation on two integers, refused where the result does not
// fit 64 bits (Python's have no bound).
func integers(op string, a, b int64) (jinja.Value, error) {
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
	return jinja.NewInt(n), nil
}

func product(a, b int64) (int64, bool) {
	n := a * b
	ok := a == 0 || n/a == b && !(a == -1 && b == math.MinInt64)
	return n, ok
}

func neg(r *run, a args) (jinja.Value, error) {
	x := a.pos[0]
	if err := undefined(x); err != nil {
		return empty, err
	}
	if x.IsFloat() {
		return jinja.NewFloat(-x.AsFloat()), nil
	}
	n, ok := integer(x)
	if !ok {
		return empty, faultf("bad operand type for unary -: '%s'", typeName(x))
	}
	return integers("-", 0, n)
}

func pos(_ *run, a args) (jinja.Value, error) {
	x := a.pos[0]
	if err := undefined(x); err != nil {
		return empty, err
	}
	if n, ok := integer(x); ok {
		return jinja.NewInt(n), nil
	}
	if !x.IsFloat() {
		return empty, faultf("bad operand type for unary +: '%s'", typeName(x))
	}
	return x, nil
}

// concat is ~.
func concat(r *run, a args) (jinja.Value, error) {
	n := 0
	parts := make([]string, len(a.pos))
	for i, v := range a.pos {
		parts[i] = r.printed(v)
		n += len(parts[i])
	}
	if err := r.made(n); err != nil {
		return empty, err
	}
	return jinja.NewString(strings.Join(parts, "")), nil
}
