package template

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// bigInteger begins the name of the callable that stands for an integer of a
// client beyond 64 bits: it can be printed, and nothing else.
const bigInteger = "integer "

func isBig(v jinja.Value) (digits string, ok bool) {
	if !v.IsCallable() {
		return "", false
	}
	return strings.CutPrefix(v.AsCallable().Name, bigInteger)
}

// typeName is Python's name of the type of v.
func typeName(v jinja.Value) string {
	switch {
	case v.IsUndefined():
		return "Undefined"
	case v.IsNone():
		return "NoneType"
	case v.IsBool():
		return "bool"
	case v.IsInt():
		return "int"
	case v.IsFloat():
		return "float"
	case v.IsString():
		return "str"
	case v.IsList() && isTuple(v):
		return "tuple"
	case v.IsList():
		return "list"
	case v.IsDict():
		return "dict"
	}
	if _, ok := isBig(v); ok {
		return "int"
	}
	return "function"
}

// describe is how an error calls the owner of a missing attribute.
func describe(v jinja.Value) string {
	if v.IsNone() {
		return "None"
	}
	return typeName(v) + " object"
}

// number tells whether v is an integer (booleans are) or a float.
func number(v jinja.Value) bool { return v.IsBool() || v.IsInt() || v.IsFloat() }

func integer(v jinja.Value) (int64, bool) {
	switch {
	case v.IsInt():
		return v.AsInt(), true
	case v.IsBool() && v.AsBool():
		return 1, true
	case v.IsBool():
		return 0, true
	}
	return 0, false
}

func float(v jinja.Value) float64 {
	if v.IsFloat() {
		return v.AsFloat()
	}
	n, _ := integer(v)
	return float64(n)
}

// printed is Python's str(v); an undefined value prints nothing.
func (r *run) printed(v jinja.Value) string {
	switch {
	case v.IsString():
		return v.AsString()
	case v.IsUndefined():
		return ""
	}
	var b strings.Builder
	r.repr(&b, v, 0)
	return b.String()
}

// repr writes Python's r.repr(v).
//
// Values that share parts can be small and print large: the work is counted,
// and the text cut off, once the budget is spent; bind then ends the render.
func (r *run) repr(b *strings.Builder, v jinja.Value, depth int) {
	if r.steps--; b.Len() > r.widest {
		r.steps = -1
	}
	if r.steps < 0 {
		return
	}
	switch {
	case depth > maxNesting:
		b.WriteString("...")
	case v.IsNone():
		b.WriteString("None")
	case v.IsBool() && v.AsBool():
		b.WriteString("True")
	case v.IsBool():
		b.WriteString("False")
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		b.WriteString(reprFloat(v.AsFloat()))
	case v.IsString():
		reprString(b, v.AsString())
	case v.IsList():
		open, shut := "[", "]"
		if isTuple(v) {
			open, shut = "(", ")"
		}
		b.WriteString(open)
		for i, item := range v.AsList().Items {
			if i > 0 {
				b.WriteString(", ")
			}
			r.repr(b, item, depth+1)
		}
		if open == "(" && v.AsList().Len() == 1 {
			b.WriteByte(',')
		}
		b.WriteString(shut)
	case v.IsDict():
		d := v.AsDict()
		b.WriteByte('{')
		for i, k := range d.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			reprString(b, keyOf(d, k).AsString())
			b.WriteString(": ")
			r.repr(b, d.Data[k], depth+1)
		}
		b.WriteByte('}')
	case v.IsUndefined():
		b.WriteString("Undefined")
	default:
		if digits, ok := isBig(v); ok {
			b.WriteString(digits)
		} else {
			b.WriteString("<function " + v.AsCallable().Name + ">")
		}
	}
}

// tuple is a list that the engine has made from a tuple literal: the flag that
// says so is its own, and travels only by copying the struct.
var tuple = func() (proto jinja.List) {
	t, err := jinja.Compile("{{ f((1,)) }}")
	if err != nil {
		panic(err) // a constant
	}
	f := jinja.NewCallable("f", func(pos []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		proto = *pos[0].AsList()
		return jinja.None(), nil
	})
	if _, err := t.RenderValues(map[string]jinja.Value{"f": f}); err != nil {
		panic(err)
	}
	return proto
}()

func newTuple(items ...jinja.Value) jinja.Value {
	v := jinja.NewList(nil)
	*v.AsList() = tuple
	v.AsList().Items = items
	return v
}

// isTuple tells whether a list is a tuple: an empty copy of it prints as "()".
func isTuple(v jinja.Value) bool {
	c := jinja.NewList(nil)
	*c.AsList() = *v.AsList()
	c.AsList().Items = nil
	return c.String() == "()"
}

// reprString writes the literal of a string; marks pass through, outside of the
// escapes.
func reprString(b *strings.Builder, s string) {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	b.WriteRune(quote)
	b.WriteString(mapParts(s, func(part string) string {
		var e strings.Builder
		for _, r := range part {
			switch {
			case r == quote || r == '\\':
				e.WriteByte('\\')
				e.WriteRune(r)
			case r == '\n':
				e.WriteString(`\n`)
			case r == '\r':
				e.WriteString(`\r`)
			case r == '\t':
				e.WriteString(`\t`)
			case unicode.IsPrint(r):
				e.WriteRune(r)
			case r < 0x100:
				fmt.Fprintf(&e, `\x%02x`, r)
			case r < 0x10000:
				fmt.Fprintf(&e, `\u%04x`, r)
			default:
				fmt.Fprintf(&e, `\U%08x`, r)
			}
		}
		return e.String()
	}))
	b.WriteRune(quote)
}

// reprFloat is Python's repr of a float: the shortest digits that read back.
func reprFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	s := strconv.FormatFloat(f, format, -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}
