package template

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Value is a value of a template. It holds nothing (undefined), none{}, a bool, int64, digits,
// float64, string, *List, *Dict, *callable or instance.
type Value struct{ v any }

type none struct{}

// digits is an integer of a client beyond 64 bits: it can be printed and compared, but not used in
// arithmetic.
type digits string

// List is a list or a tuple.
type List struct {
	Items []Value
	tuple bool
}

// Dict is a dict, in the order of its keys.
type Dict struct {
	Keys   []string
	Data   map[string]Value
	client bool // the keys are a client's words
}

// callable is a function, a macro or a method.
type callable struct {
	name string
	call function
}

// instance is a value with attributes and nothing else.
type instance interface {
	kind() string // Python's name of its type
	attribute(r *run, name string) Value
}

func Undefined() Value              { return Value{} }
func None() Value                   { return Value{none{}} }
func NewBool(b bool) Value          { return Value{b} }
func NewInt(n int64) Value          { return Value{n} }
func NewFloat(f float64) Value      { return Value{f} }
func NewString(s string) Value      { return Value{s} }
func NewList(items []Value) Value   { return Value{&List{Items: items}} }
func newTuple(items ...Value) Value { return Value{&List{Items: items, tuple: true}} }
func NewDict() Value                { return Value{&Dict{Data: map[string]Value{}}} }

// empty is the empty string.
var empty = NewString("")

func is[T any](v Value) bool { _, ok := v.v.(T); return ok }

func (v Value) IsUndefined() bool { return v.v == nil }
func (v Value) IsNone() bool      { return is[none](v) }
func (v Value) IsBool() bool      { return is[bool](v) }
func (v Value) IsInt() bool       { return is[int64](v) }
func (v Value) IsFloat() bool     { return is[float64](v) }
func (v Value) IsString() bool    { return is[string](v) }
func (v Value) IsList() bool      { return is[*List](v) }
func (v Value) IsDict() bool      { return is[*Dict](v) }

// The As methods panic where v holds something else.

func (v Value) AsBool() bool     { return v.v.(bool) }
func (v Value) AsInt() int64     { return v.v.(int64) }
func (v Value) AsFloat() float64 { return v.v.(float64) }
func (v Value) AsString() string { return v.v.(string) }
func (v Value) AsList() *List    { return v.v.(*List) }
func (v Value) AsDict() *Dict    { return v.v.(*Dict) }

// IsTruthy is Python's bool(v).
func (v Value) IsTruthy() bool {
	switch v := v.v.(type) {
	case nil, none:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.Keys) > 0
	}
	return true
}

// Len returns the number of items.
func (l *List) Len() int { return len(l.Items) }

// Len returns the number of entries.
func (d *Dict) Len() int { return len(d.Keys) }

// Get returns the value of a key; a nil Dict has none.
func (d *Dict) Get(key string) (Value, bool) {
	if d == nil {
		return Value{}, false
	}
	v, ok := d.Data[key]
	return v, ok
}

// Set stores a value; a new key comes last.
func (d *Dict) Set(key string, v Value) {
	if _, ok := d.Data[key]; !ok {
		d.Keys = append(d.Keys, key)
	}
	d.Data[key] = v
}

// isTuple reports whether a list is a tuple.
func isTuple(v Value) bool { return v.AsList().tuple }

// typeName is Python's name of the type of v.
func typeName(v Value) string {
	switch v := v.v.(type) {
	case nil:
		return "Undefined"
	case none:
		return "NoneType"
	case bool:
		return "bool"
	case int64, digits:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case instance:
		return v.kind()
	}
	return "function"
}

// describe returns how an error calls the owner of a missing attribute.
func describe(v Value) string {
	if v.IsNone() {
		return "None"
	}
	return typeName(v) + " object"
}

// number reports whether v is an integer (booleans are) or a float.
func number(v Value) bool { return v.IsBool() || v.IsInt() || v.IsFloat() }

func integer(v Value) (int64, bool) {
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

func float(v Value) float64 {
	if v.IsFloat() {
		return v.AsFloat()
	}
	n, _ := integer(v)
	return float64(n)
}

// printed is Python's str(v); an undefined value prints nothing.
func (r *run) printed(v Value) string {
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

// Print is Python's str(v); v must hold nothing but JSON, without marks.
func Print(v Value) (text string, err error) {
	r := &run{steps: DefaultSteps, widest: DefaultOutput, memory: DefaultOutput}
	err = caught(func() { text = r.printed(v) })
	return text, err
}

// repr writes Python's repr(v). Values that share parts can be small and print large, so the work
// and the text are counted.
func (r *run) repr(b *strings.Builder, v Value, depth int) {
	if r.spend(1); b.Len() > r.widest {
		r.made(b.Len())
	}
	if depth > maxNesting {
		b.WriteString("...")
		return
	}
	switch v := v.v.(type) {
	case nil:
		b.WriteString("Undefined")
	case none:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case digits:
		b.WriteString(string(v))
	case float64:
		b.WriteString(reprFloat(v))
	case string:
		reprString(b, v)
	case *List:
		r.reprList(b, v, depth)
	case *Dict:
		r.reprDict(b, v, depth)
	case *callable:
		b.WriteString("<function " + v.name + ">")
	case *namespace:
		b.WriteString("<Namespace ")
		r.reprDict(b, &v.Dict, depth)
		b.WriteString(">")
	case instance:
		b.WriteString("<" + v.kind() + ">")
	}
}

func (r *run) reprDict(b *strings.Builder, d *Dict, depth int) {
	b.WriteByte('{')
	for i, k := range d.Keys {
		if i > 0 {
			b.WriteString(", ")
		}
		reprString(b, d.key(k))
		b.WriteString(": ")
		r.repr(b, d.Data[k], depth+1)
	}
	b.WriteByte('}')
}

func (r *run) reprList(b *strings.Builder, l *List, depth int) {
	open, shut := "[", "]"
	if l.tuple {
		open, shut = "(", ")"
	}
	if l.tuple && len(l.Items) == 1 {
		shut = ",)"
	}
	b.WriteString(open)
	for i, item := range l.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		r.repr(b, item, depth+1)
	}
	b.WriteString(shut)
}

// reprString writes the literal of a string; marks pass through, outside of the escapes.
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
