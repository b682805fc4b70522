package chat

import (
	"errors"
	"slices"
	"strings"

	"krater/stages/text/chat/template"
)

// declaration is the variable in which the template of Kimi K2.5 wants tools in TypeScript. In the
// release, Python code beside the tokenizer (tool_declaration_ts.py) writes it; nothing in the template
// does.
const declaration = "tools_ts_str"

// errSchema: a schema has no TypeScript here. The template gets no declaration then and writes JSON, as
// with the release.
var errSchema = errors.New("a schema without TypeScript")

// sortKeys returns v with the keys of all objects in order.
func sortKeys(v template.Value) template.Value {
	switch {
	case v.IsList():
		items := slices.Clone(v.AsList().Items)
		for i := range items {
			items[i] = sortKeys(items[i])
		}
		return template.NewList(items)
	case v.IsDict():
		d := template.NewDict()
		for _, key := range slices.Sorted(slices.Values(v.AsDict().Keys)) {
			d.AsDict().Set(key, sortKeys(v.AsDict().Data[key]))
		}
		return d
	}
	return v
}

// declare writes checked tools, whose keys are in order, as TypeScript in at most limit bytes; "" where
// that cannot be done.
func declare(tools template.Value, limit int) string {
	w := &typeWriter{limit: limit}
	w.text("# Tools\n\n## functions\nnamespace functions {\n")
	for _, tool := range tools.AsList().Items {
		fn, _ := tool.AsDict().Get("function")
		if err := w.function(fn.AsDict()); err != nil {
			return ""
		}
	}
	w.text("}\n")
	if w.b.Len() > limit {
		return ""
	}
	return w.b.String()
}

// kind is the form that a schema has in TypeScript.
type kind uint8

const (
	plainKind kind = iota // schema.name
	objectKind
	arrayKind // of list[0]
	anyOfKind // one of list
)

// schema is a JSON schema, read.
type schema struct {
	kind        kind
	name        string
	description string
	constraints []string // "minimum: 1", in order
	list        []*schema
	fields      []field
	rest        *schema // additionalProperties; nil: not given
}

// field is a property of an object.
type field struct {
	name     string
	of       *schema
	optional bool
	initial  string // its default, "" without one
}

// schemaReader reads the schemas of a function.
type schemaReader struct {
	names []string // of $defs, in the order in which they come
	defs  map[string]template.Value
	self  bool // "#" occurs
}

// read reads a schema. Its depth is bounded by that of the JSON.
func (r *schemaReader) read(v template.Value) (*schema, error) {
	if v.IsBool() {
		return &schema{name: map[bool]string{true: "any", false: "null"}[v.AsBool()]}, nil
	}
	if !v.IsDict() {
		return nil, errSchema
	}
	d := v.AsDict()
	if d.Len() == 0 {
		return &schema{name: "any"}, nil
	}
	s := &schema{}
	if text, ok := d.Get("description"); ok && text.IsTruthy() {
		if !text.IsString() {
			return nil, errSchema
		}
		s.description = text.AsString()
	}
	ref, isRef := d.Get("$ref")
	anyOf, isAnyOf := d.Get("anyOf")
	enum, isEnum := d.Get("enum")
	kind, isTyped := d.Get("type")
	switch {
	case isRef:
		return s, r.ref(s, ref)
	case isAnyOf:
		s.kind = anyOfKind
		return s, r.all(s, anyOf)
	case isEnum:
		return s, readEnum(s, enum, kind)
	case !isTyped:
		return nil, errSchema
	case kind.IsList():
		return s, union(s, kind.AsList().Items)
	case !kind.IsString():
		return nil, errSchema
	case kind.AsString() == "object":
		return s, r.object(s, d)
	case kind.AsString() == "array":
		return s, r.array(s, d)
	}
	s.name = kind.AsString()
	switch s.name {
	case "string":
		return s, s.constrain(d, "maxLength", "minLength", "pattern")
	case "integer":
		s.name = "number"
		fallthrough
	case "number":
		return s, s.constrain(d, "maximum", "minimum")
	}
	return s, nil
}

// constrain takes the named fields of d, which are in order, as constraints.
func (s *schema) constrain(d *template.Dict, names ...string) error {
	for _, name := range names {
		if v, ok := d.Get(name); ok {
			text, err := template.Print(v)
			if err != nil {
				return errSchema
			}
			s.constraints = append(s.constraints, name+": "+text)
		}
	}
	return nil
}

func (r *schemaReader) ref(s *schema, v template.Value) error {
	if !v.IsString() {
		return errSchema
	}
	name, local := strings.CutPrefix(v.AsString(), "#/$defs/")
	switch {
	case v.AsString() == "#":
		r.self, s.name = true, "parameters"
		return nil
	case !local:
		return errSchema
	}
	s.name = name[strings.LastIndexByte(name, '/')+1:]
	def, ok := r.defs[s.name]
	if !ok || !def.IsDict() {
		return errSchema
	}
	if self, ok := def.AsDict().Get("$self_ref"); ok && self.IsTruthy() {
		s.name = "parameters"
	}
	return nil
}

func (r *schemaReader) all(s *schema, v template.Value) error {
	if !v.IsList() {
		return errSchema
	}
	for _, item := range v.AsList().Items {
		one, err := r.read(item)
		if err != nil {
			return err
		}
		s.list = append(s.list, one)
	}
	return nil
}

// unions are the members of a union of types.
var unions = map[string]string{
	"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null", "object": "{}", "array": "Array<any>",
}

func union(s *schema, types []template.Value) error {
	var names []string
	for _, t := range types {
		if !t.IsString() || unions[t.AsString()] == "" {
			return errSchema
		}
		names = append(names, unions[t.AsString()])
	}
	s.name = strings.Join(names, " | ")
	return nil
}

// readEnum reads the values of an enum, which must be of its type, if it has one.
func readEnum(s *schema, values, kind template.Value) error {
	if !values.IsList() {
		return errSchema
	}
	if kind.IsList() {
		types := slices.Clone(kind.AsList().Items)
		null := func(v template.Value) bool { return v.IsString() && v.AsString() == "null" }
		if len(types) == 2 && slices.ContainsFunc(types, null) {
			if null(types[0]) {
				types = types[1:]
			}
			types = types[:1]
		}
		if len(types) != 1 {
			return errSchema
		}
		kind = types[0]
	}
	var names []string
	for _, v := range values.AsList().Items {
		if kind.IsString() && !v.IsNone() && !ofType(v, kind.AsString()) {
			return errSchema
		}
		text, err := template.Print(v)
		if err != nil {
			return errSchema
		}
		if v.IsString() {
			text = `"` + text + `"`
		}
		names = append(names, text)
	}
	s.name = strings.Join(names, " | ")
	return nil
}

// ofType reports whether v is of a JSON type as Python sees it, where true is a number.
func ofType(v template.Value, kind string) bool {
	switch kind {
	case "string":
		return v.IsString()
	case "boolean":
		return v.IsBool()
	case "integer":
		return v.IsInt() || v.IsBool()
	case "number":
		return v.IsInt() || v.IsBool() || v.IsFloat()
	}
	return true
}

func (r *schemaReader) array(s *schema, d *template.Dict) error {
	s.kind = arrayKind
	items, _ := d.Get("items")
	item := &schema{name: "any"}
	if items.IsTruthy() {
		var err error
		if item, err = r.read(items); err != nil {
			return err
		}
	}
	s.list = []*schema{item}
	return s.constrain(d, "maxItems", "minItems")
}

func (r *schemaReader) object(s *schema, d *template.Dict) error {
	s.kind = objectKind
	if defs, ok := d.Get("$defs"); ok && defs.IsTruthy() {
		if !defs.IsDict() {
			return errSchema
		}
		for _, name := range defs.AsDict().Keys {
			if _, twice := r.defs[name]; !twice {
				r.names = append(r.names, name)
			}
			r.defs[name] = defs.AsDict().Data[name]
		}
	}
	if rest, ok := d.Get("additionalProperties"); ok && !rest.IsNone() {
		var err error
		if s.rest, err = r.read(rest); err != nil {
			return err
		}
		if rest.IsBool() && !rest.AsBool() {
			s.rest.name = "never"
		}
	}
	properties, ok := d.Get("properties")
	if !ok {
		return nil
	}
	if !properties.IsDict() {
		return errSchema
	}
	required, err := texts(d, "required")
	if err != nil {
		return err
	}
	for _, name := range properties.AsDict().Keys {
		v := properties.AsDict().Data[name]
		f := field{name: name, optional: !slices.Contains(required, name)}
		if f.of, err = r.read(v); err != nil {
			return err
		}
		if v.IsDict() {
			if f.initial, err = initial(v.AsDict()); err != nil {
				return err
			}
		}
		s.fields = append(s.fields, f)
	}
	return nil
}

// texts returns a list of texts; an absent one is empty.
func texts(d *template.Dict, name string) (list []string, err error) {
	v, ok := d.Get(name)
	if !ok {
		return nil, nil
	}
	if !v.IsList() {
		return nil, errSchema
	}
	for _, item := range v.AsList().Items {
		if !item.IsString() {
			return nil, errSchema
		}
		list = append(list, item.AsString())
	}
	return list, nil
}

// initial returns the default of a property, numbers as Python prints them and all else as JSON.
func initial(d *template.Dict) (string, error) {
	v, ok := d.Get("default")
	if !ok || v.IsNone() {
		return "", nil
	}
	if v.IsBool() || v.IsInt() || v.IsFloat() {
		return template.Print(v)
	}
	return template.ToJSON(v)
}
