package template

// iterableOrFalse is iterable, with no items in whatever is false: map, select and reject ask that
// first.
func iterableOrFalse(r *run, v Value) []Value {
	if !v.IsTruthy() {
		return nil
	}
	return iterable(r, v)
}

// mapFilter applies a filter to every item, or looks up an attribute of it.
func mapFilter(r *run, a args) Value {
	list := iterableOrFalse(r, a.pos[0])
	out := make([]Value, len(list))
	by, attribute := a.kw.Get("attribute")
	var f function
	switch {
	case attribute && len(a.pos) == 1:
	case len(a.pos) > 1 && a.pos[1].IsString():
		if f = filters[plain(a.pos[1].AsString())]; f == nil {
			panic(faultf("no filter named %q", plain(a.pos[1].AsString())))
		}
	default:
		panic(faultf("map requires a filter argument"))
	}
	var def *Value
	if d, ok := a.kw.Get("default"); ok {
		def = &d
	}
	for i, v := range list {
		if f == nil {
			out[i] = path(r, v, by, def)
		} else {
			r.spend(1 + weight(v))
			out[i] = f(r, args{pos: append([]Value{v}, a.pos[2:]...), kw: a.kw})
		}
	}
	return NewList(out)
}

// choose makes select, reject and their forms on an attribute.
func choose(attribute, want bool) function {
	return func(r *run, a args) Value {
		list := iterableOrFalse(r, a.pos[0])
		rest := a.pos[1:]
		var by Value
		if attribute {
			if len(rest) == 0 {
				panic(faultf("missing parameter for attribute name"))
			}
			by, rest = rest[0], rest[1:]
		}
		check := func(_ *run, a args) bool { return a.pos[0].IsTruthy() }
		if len(rest) > 0 {
			name := plain(r.printed(rest[0]))
			if check = tests[name]; check == nil {
				panic(faultf("no test named %q", name))
			}
			rest = rest[1:]
		}
		var out []Value
		for _, item := range list {
			r.spend(1)
			v := item
			if attribute {
				v = path(r, item, by, nil)
			}
			ok := check(r, args{pos: append([]Value{v}, rest...)})
			if ok == want {
				out = append(out, item)
			}
		}
		return NewList(out)
	}
}
