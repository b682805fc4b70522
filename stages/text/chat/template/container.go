package template

import (
	"slices"

	"github.com/ardanlabs/jinja"
)

var (
	dictMethods = map[string]methodFunc{
		"items": dictItems, "keys": dictKeys, "values": dictValues, "get": dictGet, "copy": dictCopy,
	}
	dictMutators = []string{"clear", "pop", "popitem", "setdefault", "update"}
	listMethods  = map[string]methodFunc{"count": listCount, "index": listIndex, "copy": listCopy}
	listMutators = []string{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}
)

func dictItems(r *run, v jinja.Value, _ args) (jinja.Value, error) {
	d := v.AsDict()
	list := make([]jinja.Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = newTuple(keyOf(d, k), d.Data[k])
	}
	return jinja.NewList(list), r.spend(len(list) / 4)
}

func dictKeys(r *run, v jinja.Value, _ args) (jinja.Value, error) {
	list, err := iterable(r, v)
	return jinja.NewList(list), err
}

func dictValues(r *run, v jinja.Value, _ args) (jinja.Value, error) {
	d := v.AsDict()
	list := make([]jinja.Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = d.Data[k]
	}
	return jinja.NewList(list), r.spend(len(list) / 4)
}

func dictGet(r *run, v jinja.Value, a args) (jinja.Value, error) {
	k, ok := a.at(0, "key")
	if !ok {
		return empty, faultf("get expected at least 1 argument, got 0")
	}
	if !k.IsUndefined() {
		if found, ok := v.AsDict().Get(plain(r.printed(k))); ok {
			return found, nil
		}
	}
	return a.or(1, "default", jinja.None()), nil
}

func dictCopy(r *run, v jinja.Value, _ args) (jinja.Value, error) {
	return merged(r, jinja.NewDict(), v)
}

// merged puts the entries of from into the dict to.
func merged(r *run, to, from jinja.Value) (jinja.Value, error) {
	for _, k := range from.AsDict().Keys {
		to.AsDict().Set(k, from.AsDict().Data[k])
	}
	if flagged(from.AsDict(), flagClient) {
		MarkKeys(to)
	}
	return to, r.spend(from.AsDict().Len() / 4)
}

func listCount(r *run, v jinja.Value, a args) (jinja.Value, error) {
	n := 0
	for _, item := range v.AsList().Items {
		if r.equal(item, a.or(0, "value", jinja.Undefined())) {
			n++
		}
	}
	return jinja.NewInt(int64(n)), r.spend(v.AsList().Len())
}

func listIndex(r *run, v jinja.Value, a args) (jinja.Value, error) {
	what := a.or(0, "value", jinja.Undefined())
	i := slices.IndexFunc(v.AsList().Items, func(item jinja.Value) bool { return r.equal(item, what) })
	if i < 0 {
		return empty, faultf("%s is not in list", plain(r.printed(what)))
	}
	return jinja.NewInt(int64(i)), r.spend(i)
}

func listCopy(_ *run, v jinja.Value, _ args) (jinja.Value, error) {
	return jinja.NewList(slices.Clone(v.AsList().Items)), nil
}

// globals are the functions that every template may call. The engine adds
// joiner and cycler.
var globals = map[string]function{
	"dict": dictGlobal, "namespace": namespace, "range": rangeGlobal,
	"raise_exception": raise, "strftime_now": strftimeNow,
}

// dictGlobal is dict(...). The engine itself adds named arguments, in order.
func dictGlobal(r *run, a args) (jinja.Value, error) {
	d := jinja.NewDict()
	if len(a.pos) > 1 {
		return empty, faultf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 && isMapping(a.pos[0]) {
		return merged(r, d, a.pos[0])
	}
	if len(a.pos) == 1 {
		list, err := iterable(r, a.pos[0])
		if err != nil {
			return empty, err
		}
		for _, pair := range list {
			kv, ok := items(pair)
			if !ok || len(kv) != 2 {
				return empty, faultf("dictionary update sequence element is not a pair")
			}
			if kv[0].IsString() && plain(kv[0].AsString()) != kv[0].AsString() {
				MarkKeys(d)
			}
			d.AsDict().Set(plain(r.printed(kv[0])), kv[1])
		}
	}
	return d, nil
}

func namespace(r *run, a args) (jinja.Value, error) {
	d, err := dictGlobal(r, args{pos: a.pos})
	if err != nil {
		return empty, err
	}
	for k, v := range a.kw {
		d.AsDict().Set(k, v)
	}
	d.AsDict().Data[flagSpace] = jinja.None()
	return d, nil
}

func rangeGlobal(r *run, a args) (jinja.Value, error) {
	var n [3]int64
	for i, v := range a.pos {
		x, ok := integer(v)
		if !ok || i > 2 {
			return empty, faultf("'%s' object cannot be interpreted as an integer", typeName(v))
		}
		n[i] = x
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(a.pos) {
	case 0:
		return empty, faultf("range expected at least 1 argument, got 0")
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return empty, faultf("range() arg 3 must not be zero")
	}
	var list []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			return empty, faultf("range too big, the sandbox blocks ranges larger than %d", maxRange)
		}
		list = append(list, jinja.NewInt(i))
		if next := i + step; (next > i) != (step > 0) {
			break // overflow: past stop as well
		}
	}
	return jinja.NewList(list), nil
}

func raise(r *run, a args) (jinja.Value, error) {
	return empty, &Raised{Message: plain(r.printed(a.or(0, "message", empty)))}
}
