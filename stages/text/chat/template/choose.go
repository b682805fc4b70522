package template

// iterableOrFalse is iterable, with no items in whatever is false: map, select
// and reject ask that first.
func iterableOrFalse(r *run, v Value) ([]Value, error) {
	if !v.IsTruthy() {
		return nil, nil
	}
	return iterable(r, v)
}

// mapFilter applies a filter, or looks up an attribute, in every item.
func mapFilter(r *run, a args) (Value, error) {
	list, err := iterableOrFalse(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	out := make([]Value, len(list))
	by, attribute := a.kw.Get("attribute")
	var f function
	switch {
	case attribute && len(a.pos) == 1:
	case len(a.pos) > 1 && a.pos[1].IsString():
		if f = filters[plain(a.pos[1].AsString())]; f == nil {
			return empty, faultf("no filter named %q", plain(a.pos[1].AsString()))
		}
	default:
		return empty, faultf("map requires a filter argument")
	}
	var def *Value
	if d, ok := a.kw.Get("default"); ok {
		def = &d
	}
	for i, v := range list {
		if f == nil {
			out[i], err = path(r, v, by, def)
		} else if err = r.spend(1 + weight(v)); err == nil {
			out[i], err = f(r, args{pos: append([]Value{v}, a.pos[2:]...), kw: a.kw})
		}
		if err != nil {
			return empty, err
		}
	}
	return NewList(out), nil
}

// choose makes select, reject and their forms on an attribute.
func choose(attribute, want bool) function {
	return func(r *run, a args) (Value, error) {
		list, err := iterableOrFalse(r, a.pos[0])
		if err != nil {
			return empty, err
		}
		rest := a.pos[1:]
		var by Value
		if attribute {
			if len(rest) == 0 {
				return empty, faultf("missing parameter for attribute name")
			}
			by, rest = rest[0], rest[1:]
		}
		check := func(_ *run, a args) (bool, error) { return a.pos[0].IsTruthy(), nil }
		if len(rest) > 0 {
			name := plain(r.printed(rest[0]))
			if check = tests[name]; check == nil {
				return empty, faultf("no test named %q", name)
			}
			rest = rest[1:]
		}
		var out []Value
		for _, item := range list {
			if err := r.spend(1); err != nil {
				return empty, err
			}
			v := item
			if attribute {
				if v, err = path(r, item, by, nil); err != nil {
					return empty, err
				}
			}
			ok, err := check(r, args{pos: append([]Value{v}, rest...)})
			if err != nil {
				return empty, err
			}
			if ok == want {
				out = append(out, item)
			}
		}
		return NewList(out), nil
	}
}
