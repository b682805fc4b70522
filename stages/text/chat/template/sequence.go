package template

import (
	"slices"
	"strings"
)

func cutDot(s string) (part, rest string, last bool) {
	part, rest, more := strings.Cut(s, ".")
	return part, rest, !more
}

func first(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	if len(list) == 0 {
		return Undefined()
	}
	return list[0]
}

func last(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	if len(list) == 0 {
		return Undefined()
	}
	return list[len(list)-1]
}

func listFilter(r *run, a args) Value {
	return NewList(slices.Clone(iterable(r, a.pos[0])))
}

func itemsFilter(r *run, a args) Value {
	if a.pos[0].IsUndefined() {
		return NewList(nil)
	}
	if !a.pos[0].IsDict() {
		panic(faultf("Can only get item pairs from a mapping."))
	}
	return dictItems(r, a.pos[0], args{})
}

func reverse(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	list = slices.Clone(list)
	slices.Reverse(list)
	if a.pos[0].IsString() {
		return concat(r, args{pos: list})
	}
	return NewList(list)
}

// sortKey returns what values are ordered by: the value or an attribute of it, strings without case
// unless asked for.
func sortKey(r *run, v, by Value, exact bool) Value {
	if !by.IsNone() {
		v = path(r, v, by, nil)
	}
	if v.IsString() && !exact {
		v = NewString(lower(plain(v.AsString())))
	}
	return v
}

// sorted is list in the order of its keys, stably.
func sorted(r *run, list, keys []Value, descending bool) Value {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		r.spend(1)
		n, _ := r.compare("<", keys[i], keys[j])
		if descending {
			return -n
		}
		return n
	})
	out := make([]Value, len(list))
	for i, from := range order {
		out[i] = list[from]
	}
	return NewList(out)
}

func sortFilter(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	keys := make([]Value, len(list))
	for i, v := range list {
		keys[i] = sortKey(r, v, a.or(3, "attribute", None()), a.truth(2, "case_sensitive", false))
	}
	return sorted(r, list, keys, a.truth(1, "reverse", false))
}

func dictsort(r *run, a args) Value {
	if !a.pos[0].IsDict() {
		panic(faultf("'%s' has no attribute 'items'", describe(a.pos[0])))
	}
	by := 0
	switch r.printed(a.or(2, "by", NewString("key"))) {
	case "key":
	case "value":
		by = 1
	default:
		panic(faultf(`You can only sort by either "key" or "value"`))
	}
	v := dictItems(r, a.pos[0], args{})
	list := v.AsList().Items
	keys := make([]Value, len(list))
	for i, pair := range list {
		keys[i] = sortKey(r, pair.AsList().Items[by], None(), a.truth(1, "case_sensitive", false))
	}
	return sorted(r, list, keys, a.truth(3, "reverse", false))
}

func unique(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	var seen, out []Value
	for _, v := range list {
		k := sortKey(r, v, a.or(2, "attribute", None()), a.truth(1, "case_sensitive", false))
		if unhashable(k) {
			panic(faultf("unhashable type: '%s'", typeName(k)))
		}
		r.spend(1 + len(seen)/4)
		if !slices.ContainsFunc(seen, func(s Value) bool { return r.equal(s, k) }) {
			seen, out = append(seen, k), append(out, v)
		}
	}
	return NewList(out)
}

func extremum(sign int) function {
	return func(r *run, a args) Value {
		list := iterable(r, a.pos[0])
		if len(list) == 0 {
			return Undefined()
		}
		var best, bestKey Value
		for i, v := range list {
			k := sortKey(r, v, a.or(2, "attribute", None()), a.truth(1, "case_sensitive", false))
			if i > 0 {
				n, _ := r.compare("<", k, bestKey)
				if n*sign <= 0 {
					continue
				}
			}
			best, bestKey = v, k
		}
		return best
	}
}

func sum(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	total := a.or(2, "start", NewInt(0))
	for _, v := range list {
		if by := a.or(1, "attribute", None()); !by.IsNone() {
			v = path(r, v, by, nil)
		}
		total = add(r, total, v)
	}
	return total
}

func batch(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	n, ok := integer(a.or(1, "linecount", None()))
	if !ok || n < 1 || n > maxRange {
		panic(faultf("batch needs the length of a line"))
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
	return NewList(out)
}

// sliceFilter cuts a list in n columns of nearly equal length.
func sliceFilter(r *run, a args) Value {
	list := iterable(r, a.pos[0])
	n, ok := integer(a.or(1, "slices", None()))
	if !ok || n < 1 || n > maxRange {
		panic(faultf("slice needs the number of slices"))
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
	return NewList(out)
}
