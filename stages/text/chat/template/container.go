package template

import (
	"slices"
)

var (
	dictMethods = map[string]methodFunc{
		"items": dictItems, "keys": dictKeys, "values": dictValues, "get": dictGet, "copy": dictCopy,
	}
	dictMutators = []string{"clear", "pop", "popitem", "setdefault", "update"}
	tupleMethods = map[string]methodFunc{"count": listCount, "index": listIndex}
	listMethods  = map[string]methodFunc{"count": listCount, "index": listIndex, "copy": listCopy}
	listMutators = []string{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}
)

func dictItems(r *run, v Value, _ args) Value {
	d := v.AsDict()
	list := make([]Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = newTuple(NewString(d.key(k)), d.Data[k])
	}
	r.spend(len(list) / 4)
	return NewList(list)
}

func dictKeys(r *run, v Value, _ args) Value {
	return NewList(iterable(r, v))
}

func dictValues(r *run, v Value, _ args) Value {
	d := v.AsDict()
	list := make([]Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = d.Data[k]
	}
	r.spend(len(list) / 4)
	return NewList(list)
}

func dictGet(r *run, v Value, a args) Value {
	k, ok := a.at(0, "key")
	if !ok {
		panic(faultf("get expected at least 1 argument, got 0"))
	}
	if !k.IsUndefined() {
		if found, ok := v.AsDict().Get(plain(r.printed(k))); ok {
			return found
		}
	}
	return a.or(1, "default", None())
}

func dictCopy(r *run, v Value, _ args) Value {
	return merged(r, NewDict(), v)
}

// merged puts the entries of from into the dict to.
func merged(r *run, to, from Value) Value {
	for _, k := range from.AsDict().Keys {
		to.AsDict().Set(k, from.AsDict().Data[k])
	}
	if from.AsDict().client {
		MarkKeys(to)
	}
	r.spend(from.AsDict().Len() / 4)
	return to
}

func listCount(r *run, v Value, a args) Value {
	n := 0
	for _, item := range v.AsList().Items {
		if r.equal(item, a.or(0, "value", Undefined())) {
			n++
		}
	}
	r.spend(v.AsList().Len())
	return NewInt(int64(n))
}

func listIndex(r *run, v Value, a args) Value {
	what := a.or(0, "value", Undefined())
	i := slices.IndexFunc(v.AsList().Items, func(item Value) bool { return r.equal(item, what) })
	if i < 0 {
		panic(faultf("%s is not in list", plain(r.printed(what))))
	}
	r.spend(i)
	return NewInt(int64(i))
}

func listCopy(_ *run, v Value, _ args) Value {
	return NewList(slices.Clone(v.AsList().Items))
}

// globals are the functions that every template may call.
var globals = map[string]Value{}

func init() {
	for name, f := range map[string]function{
		"cycler": cyclerGlobal, "dict": dictGlobal, "joiner": joinerGlobal, "namespace": namespaceGlobal,
		"raise_exception": raise, "range": rangeGlobal, "strftime_now": strftimeNow,
	} {
		globals[name] = Value{&callable{name, f}}
	}
}

func dictGlobal(r *run, a args) Value {
	d := NewDict()
	if len(a.pos) > 1 {
		panic(faultf("dict expected at most 1 argument, got %d", len(a.pos)))
	}
	if len(a.pos) == 1 && a.pos[0].IsDict() {
		merged(r, d, a.pos[0])
	} else if len(a.pos) == 1 {
		list := iterable(r, a.pos[0])
		for _, pair := range list {
			kv, ok := items(pair)
			if !ok || len(kv) != 2 {
				panic(faultf("dictionary update sequence element is not a pair"))
			}
			if kv[0].IsString() && plain(kv[0].AsString()) != kv[0].AsString() {
				MarkKeys(d)
			}
			d.AsDict().Set(plain(r.printed(kv[0])), kv[1])
		}
	}
	if a.kw != nil {
		return merged(r, d, Value{a.kw})
	}
	return d
}

// namespace is an object whose attributes a template may assign.
type namespace struct{ Dict }

func namespaceGlobal(r *run, a args) Value {
	d := dictGlobal(r, a)
	return Value{&namespace{*d.AsDict()}}
}

func (n *namespace) kind() string { return "Namespace" }

func (n *namespace) attribute(_ *run, name string) Value {
	v, _ := n.Get(name)
	return v
}

// joinerGlobal makes a function that returns nothing at first and the separator ever after.
func joinerGlobal(_ *run, a args) Value {
	sep, used := a.or(0, "sep", NewString(", ")), false
	return Value{&callable{"joiner", func(*run, args) Value {
		if !used {
			used = true
			return empty
		}
		return sep
	}}}
}

// cycler goes round a list.
type cycler struct {
	items []Value
	at    int
}

func cyclerGlobal(_ *run, a args) Value {
	if len(a.pos) == 0 {
		panic(faultf("at least one item has to be provided"))
	}
	return Value{&cycler{items: a.pos}}
}

func (c *cycler) kind() string { return "Cycler" }

func (c *cycler) attribute(_ *run, name string) Value {
	current := c.items[c.at]
	to := 0
	switch name {
	case "current":
		return current
	case "next":
		to = (c.at + 1) % len(c.items)
	case "reset":
		current = None()
	default:
		return Value{}
	}
	return Value{&callable{name, func(*run, args) Value {
		c.at = to
		return current
	}}}
}

func rangeGlobal(r *run, a args) Value {
	if a.kw != nil {
		panic(faultf("range() takes no keyword arguments"))
	}
	var n [3]int64
	for i, v := range a.pos {
		x, ok := integer(v)
		if !ok || i > 2 {
			panic(faultf("'%s' object cannot be interpreted as an integer", typeName(v)))
		}
		n[i] = x
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(a.pos) {
	case 0:
		panic(faultf("range expected at least 1 argument, got 0"))
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		panic(faultf("range() arg 3 must not be zero"))
	}
	var list []Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			panic(faultf("range too big, the sandbox blocks ranges larger than %d", maxRange))
		}
		list = append(list, NewInt(i))
		if next := i + step; (next > i) != (step > 0) {
			break // overflow: past stop as well
		}
	}
	return NewList(list)
}

func raise(r *run, a args) Value {
	panic(&Raised{Message: plain(r.printed(a.or(0, "message", empty)))})
}
