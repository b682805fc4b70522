package template

import (
	"unicode/utf8"
)

// items returns the values a loop over v sees. ok is false where Python would say that v is not
// iterable; an undefined value has none.
func items(v Value) (list []Value, ok bool) {
	switch {
	case v.IsList():
		return v.AsList().Items, true
	case v.IsDict():
		d := v.AsDict()
		list = make([]Value, len(d.Keys))
		for i, k := range d.Keys {
			list[i] = NewString(d.key(k))
		}
		return list, true
	case v.IsString():
		w := viewOf(v.AsString())
		for i := 0; i < len(w.text); {
			_, n := utf8.DecodeRuneInString(w.text[i:])
			list = append(list, NewString(w.cut(i, i+n)))
			i += n
		}
		return list, true
	case v.IsUndefined():
		return nil, true
	}
	return nil, false
}

// iterable is items, charged to the budget, or the error of Python.
func iterable(r *run, v Value) []Value {
	list, ok := items(v)
	if !ok {
		panic(faultf("'%s' object is not iterable", typeName(v)))
	}
	r.spend(len(list) / 4)
	return list
}

// unpack returns the items of v, whose number must be that of the names.
func unpack(v Value, want int) []Value {
	list, ok := items(v)
	switch {
	case !ok:
		panic(faultf("cannot unpack non-iterable %s object", typeName(v)))
	case len(list) < want:
		panic(faultf("not enough values to unpack (expected %d, got %d)", want, len(list)))
	case len(list) > want:
		panic(faultf("too many values to unpack (expected %d)", want))
	}
	return list
}
