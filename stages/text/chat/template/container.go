package template

import (
	"slices"
)

var (
	dictMethods = map[string]methodFunc{
		"items": dictItems, "keys": dictKeys, "values": dictValues, "get": dictGet, "copy": dictCopy,
	}
	dictMutators = []string{"clear", "pop", "popitem", "setdefault", "update"}
	listMethods  = map[string]methodFunc{"count": listCount, "index": listIndex, "copy": listCopy}
	listMutators = []string{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}
)

func dictItems(r *run, v Value, _ args) (Value, error) {
	d := v.AsDict()
	list := make([]Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = newTuple(NewString(d.key(k)), d.Data[k])
	}
	return NewList(list), r.spend(len(list) / 4)
}

func dictKeys(r *run, v Value, _ args) (Value, error) {
	list, err := iterable(r, v)
	return NewList(list), err
}

func dictValues(r *run, v Value, _ args) (Value, error) {
	d := v.AsDict()
	list := make([]Value, len(d.Keys))
	for i, k := range d.Keys {
		list[i] = d.Data[k]
	}
	return NewList(list), r.spend(len(list) / 4)
}

func dictGet(r *run, v Value, a args) (Value, error) {
	k, ok := a.at(0, "key")
	if !ok {
		return empty, faultf("get expected at least 1 argument, got 0")
	}
	if !k.IsUndefined() {
		if found, ok := v.AsDict().Get(plain(r.printed(k))); ok {
			return found, nil
		}
	}
	return a.or(1, "default", None()), nil
}

func dictCopy(r *run, v Value, _ args) (Value, error) {
	return merged(r, NewDict(), v)
}

// merged puts the entries of from into the dict to.
func merged(r *run, to, from Value) (Value, error) {
	for _, k := range from.AsDict().Keys {
		to.AsDict().Set(k, from.AsDict().Data[k])
	}
	if from.AsDict().client {
		MarkKeys(to)
	}
	return to, r.spend(from.AsDict().Len() / 4)
}

func listCount(r *run, v Value, a args) (Value, error) {
	n := 0
	for _, item := range v.AsList().Items {
		if r.equal(item, a.or(0, "value", Undefined())) {
			n++
		}
	}
	return NewInt(int64(n)), r.spend(v.AsList().Len())
}

func listIndex(r *run, v Value, a args) (Value, error) {
	what := a.or(0, "value", Undefined())
	i := slices.IndexFunc(v.AsList().Items, func(item Value) bool { return r.equal(item, what) })
	if i < 0 {
		return empty, faultf("%s is not in list", plain(r.printed(what)))
	}
	return NewInt(int64(i)), r.spend(i)
}

func listCopy(_ *run, v Value, _ args) (Value, error) {
	return NewList(slices.Clone(v.AsList().Items)), nil
}

// globals are what every template may call.
var globals = map[string]Value{}

func init() {
	for name, f := range map[string]function{
		"cycler": cyclerGlobal, "dict": dictGlobal, "joiner": joinerGlobal, "namespace": namespaceGlobal,
		"raise_exception": raise, "range": rangeGlobal, "strftime_now": strftimeNow,
	} {
		globals[name] = Value{&callable{name, f}}
	}
}

func dictGlobal(r *run, a args) (Value, error) {
	d := NewDict()
	if len(a.pos) > 1 {
		return empty, faultf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 && a.pos[0].IsDict() {
		if _, err := merged(r, d, a.pos[0]); err != nil {
			return empty, err
		}
	} else if len(a.pos) == 1 {
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
	if a.kw != nil {
		return merged(r, d, Value{a.kw})
	}
	return d, nil
}

// namespace is an object whose attributes a template may assign.
type namespace struct{ Dict }

func namespaceGlobal(r *run, a args) (Value, error) {
	d, err := dictGlobal(r, a)
	if err != nil {
		return empty, err
	}
	return Value{&namespace{*d.AsDict()}}, nil
}

func (n *namespace) kind() string { return "Namespace" }

func (n *namespace) attribute(_ *run, name string) (Value, error) {
	v, _ := n.Get(name)
	return v, nil
}

// joinerGlobal makes a function that returns nothing at first and the separator
// ever after.
func joinerGlobal(_ *run, a args) (Value, error) {
	sep, used := a.or(0, "sep", NewString(", ")), false
	return Value{&callable{"joiner", func(*run, args) (Value, error) {
		if !used {
			used = true
			return empty, nil
		}
		return sep, nil
	}}}, nil
}

// cycler goes round a list.
type cycler struct {
	items []Value
	at    int
}

func cyclerGlobal(_ *run, a args) (Value, error) {
	if len(a.pos) == 0 {
		return empty, faultf("at least one item has to be provided")
	}
	return Value{&cycler{items: a.pos}}, nil
}

func (c *cycler) kind() string { return "Cycler" }

func (c *cycler) attribute(_ *run, name string) (Value, error) {
	current := c.items[c.at]
	to := 0
	switch name {
	case "current":
		return current, nil
	case "next":
		to = (c.at + 1) % len(c.items)
	case "reset":
		current = None()
	default:
		return Value{}, nil
	}
	return Value{&callable{name, func(*run, args) (Value, error) {
		c.at = to
		return current, nil
	}}}, nil
}

func rangeGlobal(r *run, a args) (Value, error) {
	if a.kw != nil {
		return empty, faultf("range() takes no keyword arguments")
	}
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
	var list []Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			return empty, faultf("range too big, the sandbox blocks ranges larger than %d", maxRange)
		}
		list = append(list, NewInt(i))
		if next := i + step; (next > i) != (step > 0) {
			break // overflow: past stop as well
		}
	}
	return NewList(list), nil
}

func raise(r *run, a args) (Value, error) {
	return empty, &Raised{Message: plain(r.printed(a.or(0, "message", empty)))}
}
