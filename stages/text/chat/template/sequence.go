package template

import (
	"slices"
	"strings"
)

func cutDot(s string) (part, rest string, last bool) {
	part, rest, more := strings.Cut(s, ".")
	return part, rest, !more
}

func first(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil || len(list) == 0 {
		return Undefined(), err
	}
	return list[0], nil
}

func last(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil || len(list) == 0 {
		return Undefined(), err
	}
	return list[len(list)-1], nil
}

func listFilter(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	return NewList(slices.Clone(list)), err
}

func itemsFilter(r *run, a args) (Value, error) {
	if a.pos[0].IsUndefined() {
		return NewList(nil), nil
	}
	if !a.pos[0].IsDict() {
		return empty, faultf("Can only get item pairs from a mapping.")
	}
	return dictItems(r, a.pos[0], args{})
}

func reverse(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	list = slices.Clone(list)
	slices.Reverse(list)
	if a.pos[0].IsString() {
		return concat(r, args{pos: list})
	}
	return NewList(list), nil
}

// sortKey is what values are ordered by: the value or an attribute of it,
// strings without case unless asked for.
func sortKey(r *run, v, by Value, exact bool) (Value, error) {
	if !by.IsNone() {
		var err error
		if v, err = path(r, v, by, nil); err != nil {
			return empty, err
		}
	}
	if v.IsString() && !exact {
		v = NewString(lower(plain(v.AsString())))
	}
	return v, nil
}

// sorted sorts list by keys, stably; the first error of a comparison ends it.
func sorted(r *run, list, keys []Value, descending bool) error {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	var failed error
	slices.SortStableFunc(order, func(i, j int) int {
		if failed == nil {
			failed = r.spend(1)
		}
		n, _, err := r.compare("<", keys[i], keys[j])
		if err != nil && failed == nil {
			failed = err
		}
		if descending {
			return -n
		}
		return n
	})
	out := make([]Value, len(list))
	for i, from := range order {
		out[i] = list[from]
	}
	copy(list, out)
	return failed
}

func sortFilter(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	list = slices.Clone(list)
	keys := make([]Value, len(list))
	for i, v := range list {
		if keys[i], err = sortKey(r, v, a.or(3, "attribute", None()), a.truth(2, "case_sensitive", false)); err != nil {
			return empty, err
		}
	}
	return NewList(list), sorted(r, list, keys, a.truth(1, "reverse", false))
}

func dictsort(r *run, a args) (Value, error) {
	if !a.pos[0].IsDict() {
		return empty, faultf("'%s' has no attribute 'items'", describe(a.pos[0]))
	}
	by := 0
	switch r.printed(a.or(2, "by", NewString("key"))) {
	case "key":
	case "value":
		by = 1
	default:
		return empty, faultf(`You can only sort by either "key" or "value"`)
	}
	v, err := dictItems(r, a.pos[0], args{})
	if err != nil {
		return empty, err
	}
	list := v.AsList().Items
	keys := make([]Value, len(list))
	for i, pair := range list {
		if keys[i], err = sortKey(r, pair.AsList().Items[by], None(), a.truth(1, "case_sensitive", false)); err != nil {
			return empty, err
		}
	}
	return v, sorted(r, list, keys, a.truth(3, "reverse", false))
}

func unique(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	var seen, out []Value
	for _, v := range list {
		k, err := sortKey(r, v, a.or(2, "attribute", None()), a.truth(1, "case_sensitive", false))
		if err != nil {
			return empty, err
		}
		if unhashable(k) {
			return empty, faultf("unhashable type: '%s'", typeName(k))
		}
		if err := r.spend(1 + len(seen)/4); err != nil {
			return empty, err
		}
		if !slices.ContainsFunc(seen, func(s Value) bool { return r.equal(s, k) }) {
			seen, out = append(seen, k), append(out, v)
		}
	}
	return NewList(out), nil
}

func extremum(sign int) function {
	return func(r *run, a args) (Value, error) {
		list, err := iterable(r, a.pos[0])
		if err != nil || len(list) == 0 {
			return Undefined(), err
		}
		var best, bestKey Value
		for i, v := range list {
			k, err := sortKey(r, v, a.or(2, "attribute", None()), a.truth(1, "case_sensitive", false))
			if err != nil {
				return empty, err
			}
			if i > 0 {
				n, _, err := r.compare("<", k, bestKey)
				if err != nil {
					return empty, err
				}
				if n*sign <= 0 {
					continue
				}
			}
			best, bestKey = v, k
		}
		return best, nil
	}
}

func sum(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	if err != nil {
		return empty, err
	}
	total := a.or(2, "start", NewInt(0))
	for _, v := range list {
		if by := a.or(1, "attribute", None()); !by.IsNone() {
			if v, err = path(r, v, by, nil); err != nil {
				return empty, err
			}
		}
		if total, err = add(r, total, v); err != nil {
			return empty, err
		}
	}
	return total, nil
}

func batch(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	n, ok := integer(a.or(1, "linecount", None()))
	if err != nil || !ok || n < 1 || n > maxRange {
		return empty, cmpErr(err, "batch needs the length of a line")
	}
	fill := a.or(2, "fill_with", None())
	var out []Value
	for part := range slices.Chunk(list, int(n)) {
		part = slices.Clone(part)
		for !fill.IsNone() && len(part) < int(n) {
			part = append(part, fill)
		}
		out = append(out, NewList(part))
	}
	return NewList(out), nil
}

func cmpErr(err error, or string) error {
	if err != nil {
		return err
	}
	return faultf("%s", or)
}

// sliceFilter cuts a list in n columns of nearly equal length.
func sliceFilter(r *run, a args) (Value, error) {
	list, err := iterable(r, a.pos[0])
	n, ok := integer(a.or(1, "slices", None()))
	if err != nil || !ok || n < 1 || n > maxRange {
		return empty, cmpErr(err, "slice needs the number of slices")
	}
	fill := a.or(2, "fill_with", None())
	each, more := len(list)/int(n), len(list)%int(n)
	var out []Value
	at := 0
	for i := range int(n) {
		size := each
		if i < more {
			size++
		}
		part := slices.Clone(list[at : at+size])
		at += size
		if !fill.IsNone() && i >= more {
			part = append(part, fill)
		}
		out = append(out, NewList(part))
	}
	return NewList(out), nil
}
