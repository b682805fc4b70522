package template

import (
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// items are the values a loop over v sees. ok is false where Python would say
// that v is not iterable; an undefined value has none.
func items(v jinja.Value) (list []jinja.Value, ok bool) {
	switch {
	case v.IsList():
		return v.AsList().Items, true
	case isMapping(v):
		d := v.AsDict()
		list = make([]jinja.Value, len(d.Keys))
		for i, k := range d.Keys {
			list[i] = keyOf(d, k)
		}
		return list, true
	case v.IsString():
		w := viewOf(v.AsString())
		for i := 0; i < len(w.text); {
			_, n := utf8.DecodeRuneInString(w.text[i:])
			list = append(list, jinja.NewString(w.cut(i, i+n)))
			i += n
		}
		return list, true
	case v.IsUndefined():
		return nil, true
	}
	return nil, false
}

// iterable is items, charged to the budget, or the error of Python.
func iterable(r *run, v jinja.Value) ([]jinja.Value, error) {
	list, ok := items(v)
	if !ok {
		return nil, faultf("'%s' object is not iterable", typeName(v))
	}
	return list, r.spend(len(list) / 4)
}

// iter is what a for tag loops over.
func iter(r *run, a args) (jinja.Value, error) {
	v := a.pos[0]
	if v.IsList() {
		return v, nil
	}
	list, err := iterable(r, v)
	return jinja.NewList(list), err
}

// pairs is what a for tag with two names and a condition loops over: the engine
// unpacks those itself, and only pairs.
func pairs(r *run, a args) (jinja.Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	out := make([]jinja.Value, len(list))
	for i, v := range list {
		if out[i], err = unpack(r, args{pos: []jinja.Value{v, jinja.NewInt(2)}}); err != nil {
			return empty, err
		}
	}
	return jinja.NewList(out), nil
}

// unpack checks that a value has as many items as there are names for them.
func unpack(r *run, a args) (jinja.Value, error) {
	list, ok := items(a.pos[0])
	want := int(a.pos[1].AsInt())
	switch {
	case !ok:
		return empty, faultf("cannot unpack non-iterable %s object", typeName(a.pos[0]))
	case len(list) < want:
		return empty, faultf("not enough values to unpack (expected %d, got %d)", want, len(list))
	case len(list) > want:
		return empty, faultf("too many values to unpack (expected %d)", want)
	}
	return jinja.NewList(list), nil
}

// again is the call of a recursive loop with the list to go through.
func again(r *run, loop *jinja.Dict, a args) (jinja.Value, error) {
	call, ok := loop.Data["__call__"]
	if !ok {
		return empty, faultf("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 {
		return empty, faultf("a loop is called with one argument")
	}
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	if _, err := enter(r, args{}); err != nil {
		return empty, err
	}
	defer func() { r.depth-- }()
	return call.AsCallable().Fn([]jinja.Value{jinja.NewList(list)}, nil)
}

// fn checks that what is called can be.
func fn(r *run, a args) (jinja.Value, error) {
	v, src := a.pos[0], a.pos[1].AsString()
	if _, big := isBig(v); v.IsCallable() && !big {
		return v, nil
	}
	if v.IsUndefined() {
		return empty, faultf("'%s' is undefined", src)
	}
	if v.IsDict() && isLoop(v.AsDict()) {
		return r.bind("loop", func(r *run, b args) (jinja.Value, error) { return again(r, v.AsDict(), b) }), nil
	}
	return empty, faultf("'%s' object is not callable", typeName(v))
}
