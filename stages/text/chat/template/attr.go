package template

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// attr is v.name: a method, else an item.
func attr(r *run, a args) (jinja.Value, error) {
	return attribute(r, a.pos[0], a.pos[1].AsString(), a.pos[2].AsString())
}

func attribute(r *run, v jinja.Value, name, src string) (jinja.Value, error) {
	if v.IsUndefined() {
		return empty, faultf("'%s' is undefined", src)
	}
	if v.IsDict() && flagged(v.AsDict(), flagSpace) {
		found, _ := v.AsDict().Get(name)
		return found, nil
	}
	if m, ok, err := bound(r, v, name); ok || err != nil {
		return m, err
	}
	if v.IsDict() {
		found, _ := member(v.AsDict(), name)
		return found, nil
	}
	return jinja.Undefined(), nil
}

// member is the entry of a dict, without the one by which the engine calls a
// loop: such a call would not be counted.
func member(d *jinja.Dict, name string) (jinja.Value, bool) {
	if name == "__call__" && isLoop(d) {
		return jinja.Undefined(), false
	}
	return d.Get(name)
}

// bound is the method of v called name. Methods that would change v are
// refused, as by Jinja2's immutable sandbox.
func bound(r *run, v jinja.Value, name string) (jinja.Value, bool, error) {
	var table map[string]methodFunc
	var mutators []string
	switch {
	case v.IsString():
		table = stringMethods
	case v.IsDict():
		if isLoop(v.AsDict()) {
			return jinja.Undefined(), false, nil
		}
		table, mutators = dictMethods, dictMutators
	case v.IsList():
		table = listMethods
		if !isTuple(v) {
			mutators = listMutators
		}
	}
	if slices.Contains(mutators, name) {
		return empty, false, faultf("access to attribute '%s' of '%s' object is unsafe", name, typeName(v))
	}
	m := table[name]
	if m == nil {
		return jinja.Undefined(), false, nil
	}
	return r.bind(name, func(r *run, a args) (jinja.Value, error) { return m(r, v, a) }), true, nil
}

// isLoop tells whether d is the loop object of a for tag, which the engine keeps
// in a dict: it has attributes, and is no mapping.
func isLoop(d *jinja.Dict) bool {
	v, ok := d.Data["changed"]
	return ok && v.IsCallable() && v.AsCallable().Name == "loop.changed"
}

// isMapping tells whether v is a dict of a client or of the template.
func isMapping(v jinja.Value) bool { return v.IsDict() && !isLoop(v.AsDict()) }

// method is v.name(...).
func method(r *run, a args) (jinja.Value, error) {
	v, name, src := a.pos[0], a.pos[1].AsString(), a.pos[2].AsString()
	f, err := attribute(r, v, name, src)
	if err != nil {
		return empty, err
	}
	if f.IsUndefined() {
		return empty, faultf("'%s' has no attribute '%s'", describe(v), name)
	}
	if f, err = fn(r, args{pos: []jinja.Value{f, a.pos[2]}}); err != nil {
		return empty, err
	}
	return f.AsCallable().Fn(a.pos[3:], a.kw)
}

// itemOf is v[key].
func itemOf(r *run, a args) (jinja.Value, error) {
	return subscript(r, a.pos[0], a.pos[1], a.pos[2].AsString())
}

func subscript(r *run, v, key jinja.Value, src string) (jinja.Value, error) {
	if v.IsUndefined() {
		return empty, faultf("'%s' is undefined", src)
	}
	n, isInt := integer(key)
	switch {
	case v.IsDict():
		if key.IsUndefined() {
			return jinja.Undefined(), nil
		}
		name := plain(r.printed(key))
		if found, ok := member(v.AsDict(), name); ok {
			return found, nil
		}
	case v.IsList() && isInt:
		if n < 0 {
			n += int64(v.AsList().Len())
		}
		if n >= 0 && n < int64(v.AsList().Len()) {
			return v.AsList().Items[n], nil
		}
		return jinja.Undefined(), nil
	case v.IsString() && isInt:
		w := viewOf(v.AsString())
		count := int64(utf8.RuneCountInString(w.text))
		if n < 0 {
			n += count
		}
		if n >= 0 && n < count {
			from := byteOffset(w.text, int(n))
			return jinja.NewString(w.cut(from, byteOffset(w.text[from:], 1)+from)), nil
		}
		return jinja.Undefined(), nil
	}
	if key.IsString() { // Jinja2 falls back to the attribute
		return attribute(r, v, plain(key.AsString()), src)
	}
	return jinja.Undefined(), nil
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

// slice is v[start:stop:step]; its arguments are v, its source, and the bounds.
func slice(r *run, a args) (jinja.Value, error) {
	v := a.pos[0]
	switch {
	case v.IsUndefined():
		return empty, faultf("'%s' is undefined", a.pos[1].AsString())
	case !v.IsList() && !v.IsString():
		return empty, faultf("'%s' object is not subscriptable", typeName(v))
	}
	var list []jinja.Value
	var w view
	var length int
	if v.IsList() {
		list = v.AsList().Items
		length = len(list)
	} else {
		w = viewOf(v.AsString())
		length = utf8.RuneCountInString(w.text)
	}
	start, stop, step, err := bounds(a.pos[2:], length)
	if err != nil {
		return empty, err
	}
	if step == 1 && v.IsString() {
		from := byteOffset(w.text, start)
		return r.str(w.cut(from, from+byteOffset(w.text[from:], max(stop-start, 0))))
	}
	if v.IsString() {
		list, _ = items(v)
	}
	var picked []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		picked = append(picked, list[i])
	}
	if v.IsString() {
		return concat(r, args{pos: picked})
	}
	if isTuple(v) {
		return newTuple(picked...), nil
	}
	return jinja.NewList(picked), nil
}

// bounds resolves the three parts of a slice as Python's slice.indices.
func bounds(parts []jinja.Value, length int) (start, stop, step int, err error) {
	var at [3]int
	var given [3]bool
	for i, p := range parts {
		if p.IsNone() {
			continue
		}
		n, ok := integer(p)
		if !ok {
			return 0, 0, 0, faultf("slice indices must be integers or None or have an __index__ method")
		}
		const far = 1 << 40
		at[i], given[i] = int(min(max(n, -far), far)), true
	}
	step = 1
	if given[2] {
		step = at[2]
	}
	if step == 0 {
		return 0, 0, 0, faultf("slice step cannot be zero")
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
	return start, stop, step, nil
}

// path follows a dotted attribute path, as the filters map, selectattr and
// their like do; def stands in for what is missing.
func path(r *run, v jinja.Value, dotted jinja.Value, def *jinja.Value) (jinja.Value, error) {
	if n, ok := integer(dotted); ok {
		return subscript(r, v, jinja.NewInt(n), "item")
	}
	rest := plain(r.printed(dotted))
	for done := false; !done; {
		var part string
		part, rest, done = cutDot(rest)
		key := jinja.NewString(part)
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			key = jinja.NewInt(int64(n))
		}
		var err error
		if v, err = subscript(r, v, key, part); err != nil {
			return empty, err
		}
		if v.IsUndefined() && def != nil {
			v = *def
		}
	}
	return v, nil
}
