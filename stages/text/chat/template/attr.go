package template

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// attribute is v.name: a method, else an item. src is v in the source.
func attribute(r *run, v Value, name, src string) Value {
	switch o := v.v.(type) {
	case nil:
		panic(faultf("'%s' is undefined", src))
	case instance:
		return o.attribute(r, name)
	}
	if m := bound(v, name); !m.IsUndefined() {
		return m
	}
	if v.IsDict() {
		found, _ := v.AsDict().Get(name)
		return found
	}
	return Value{}
}

// bound returns the method of v with this name, or undefined. Methods that would change v are
// refused, as in Jinja2's immutable sandbox.
func bound(v Value, name string) Value {
	var table map[string]methodFunc
	var mutators []string
	switch o := v.v.(type) {
	case string:
		table = stringMethods
	case *Dict:
		table, mutators = dictMethods, dictMutators
	case *List:
		table, mutators = listMethods, listMutators
		if o.tuple {
			table, mutators = tupleMethods, nil
		}
	}
	if slices.Contains(mutators, name) {
		panic(faultf("access to attribute '%s' of '%s' object is unsafe", name, typeName(v)))
	}
	m := table[name]
	if m == nil {
		return Value{}
	}
	return Value{&callable{name, func(r *run, a args) Value { return m(r, v, a) }}}
}

// subscript is v[key]. src is v in the source.
func subscript(r *run, v, key Value, src string) Value {
	if v.IsUndefined() {
		panic(faultf("'%s' is undefined", src))
	}
	n, isInt := integer(key)
	switch {
	case v.IsDict():
		if key.IsUndefined() {
			return Undefined()
		}
		name := plain(r.printed(key))
		if found, ok := v.AsDict().Get(name); ok {
			return found
		}
	case v.IsList() && isInt:
		if n < 0 {
			n += int64(v.AsList().Len())
		}
		if n >= 0 && n < int64(v.AsList().Len()) {
			return v.AsList().Items[n]
		}
		return Undefined()
	case v.IsString() && isInt:
		w := viewOf(v.AsString())
		count := int64(utf8.RuneCountInString(w.text))
		if n < 0 {
			n += count
		}
		if n >= 0 && n < count {
			from := byteOffset(w.text, int(n))
			return NewString(w.cut(from, byteOffset(w.text[from:], 1)+from))
		}
		return Undefined()
	}
	if key.IsString() { // Jinja2 falls back to the attribute
		return attribute(r, v, plain(key.AsString()), src)
	}
	return Undefined()
}

// byteOffset is where rune n of s begins; n may be the number of runes.
func byteOffset(s string, n int) int {
	i := 0
	for ; n > 0 && i < len(s); n-- {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return i
}

// slice is v[start:stop:step]. src is v in the source.
func slice(r *run, v Value, src string, parts []Value) Value {
	switch {
	case v.IsUndefined():
		panic(faultf("'%s' is undefined", src))
	case !v.IsList() && !v.IsString():
		panic(faultf("'%s' object is not subscriptable", typeName(v)))
	}
	var list []Value
	var w view
	var length int
	if v.IsList() {
		list = v.AsList().Items
		length = len(list)
	} else {
		w = viewOf(v.AsString())
		length = utf8.RuneCountInString(w.text)
	}
	start, stop, step := bounds(parts, length)
	if step == 1 && v.IsString() {
		from := byteOffset(w.text, start)
		return r.str(w.cut(from, from+byteOffset(w.text[from:], max(stop-start, 0))))
	}
	if v.IsString() {
		list, _ = items(v)
	}
	var picked []Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		picked = append(picked, list[i])
	}
	if v.IsString() {
		return concat(r, args{pos: picked})
	}
	return r.like(v.AsList(), picked)
}

// bounds resolves the three parts of a slice as Python's slice.indices.
func bounds(parts []Value, length int) (start, stop, step int) {
	var at [3]int
	var given [3]bool
	for i, p := range parts {
		if p.IsNone() {
			continue
		}
		n, ok := integer(p)
		if !ok {
			panic(faultf("slice indices must be integers or None or have an __index__ method"))
		}
		const far = 1 << 40
		at[i], given[i] = int(min(max(n, -far), far)), true
	}
	step = 1
	if given[2] {
		step = at[2]
	}
	if step == 0 {
		panic(faultf("slice step cannot be zero"))
	}
	low, high := 0, length
	if step < 0 {
		low, high = -1, length-1
	}
	start, stop = low, high
	if step < 0 {
		start, stop = high, low
	}
	for i, target := range []*int{&start, &stop} {
		if given[i] {
			n := at[i]
			if n < 0 {
				n += length
			}
			*target = min(max(n, low), high)
		}
	}
	return start, stop, step
}

// path follows a dotted attribute path, as map, selectattr and similar filters do; def replaces a
// missing value.
func path(r *run, v Value, dotted Value, def *Value) Value {
	if n, ok := integer(dotted); ok {
		return subscript(r, v, NewInt(n), "item")
	}
	rest := plain(r.printed(dotted))
	for done := false; !done; {
		var part string
		part, rest, done = cutDot(rest)
		key := NewString(part)
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			key = NewInt(int64(n))
		}
		v = subscript(r, v, key, part)
		if v.IsUndefined() && def != nil {
			v = *def
		}
	}
	return v
}
