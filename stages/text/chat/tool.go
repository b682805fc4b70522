package chat

import (
	"fmt"
	"strings"

	"krater/stages/text/chat/template"
)

// tools checks the tools of a conversation; none where there are none.
func (k *checker) tools(data []byte) (template.Value, error) {
	if absent(data) {
		return template.None(), nil
	}
	v, err := decode("tools", data)
	if err != nil {
		return v, err
	}
	if !v.IsList() {
		return v, wrong("tools", "an array")
	}
	if v.AsList().Len() == 0 {
		return template.None(), nil
	}
	for i, tool := range v.AsList().Items {
		if err := checkTool(fmt.Sprintf("tools[%d]", i), tool); err != nil {
			return v, err
		}
	}
	if k.t.traits.noTools {
		k.hermes = true
		k.block, err = describe(v)
		return template.None(), err
	}
	if k.t.main.Mentions(declaration) || k.t.tools.Mentions(declaration) {
		v = sortKeys(v)
		k.declared = declare(v, base+growth*len(data))
	}
	return template.Mark(v), nil
}

// checkTool checks one tool. A function without parameters gets the schema that says so: templates
// walk through it.
func checkTool(param string, v template.Value) error {
	if !v.IsDict() {
		return wrong(param, "an object")
	}
	if err := typeFunction(param, v.AsDict()); err != nil {
		return err
	}
	if err := fieldsOf(param, v.AsDict(), "type", "function"); err != nil {
		return err
	}
	param += ".function"
	fn, ok := v.AsDict().Get("function")
	if !ok {
		return missing(param)
	}
	if !fn.IsDict() {
		return wrong(param, "an object")
	}
	d := fn.AsDict()
	if err := fieldsOf(param, d, "name", "description", "parameters", "strict"); err != nil {
		return err
	}
	if err := functionName(param+".name", d); err != nil {
		return err
	}
	if s, ok := d.Get("description"); ok && !s.IsString() {
		return wrong(param+".description", "a string")
	}
	if s, ok := d.Get("strict"); ok && !s.IsBool() && !s.IsNone() {
		return wrong(param+".strict", "true or false")
	}
	p, ok := d.Get("parameters")
	switch {
	case !ok || p.IsNone():
		schema := template.NewDict()
		schema.AsDict().Set("type", template.NewString("object"))
		schema.AsDict().Set("properties", template.NewDict())
		d.Set("parameters", schema)
	case !p.IsDict():
		return wrong(param+".parameters", "an object")
	}
	return nil
}

func typeFunction(param string, d *template.Dict) error {
	kind, ok := d.Get("type")
	switch {
	case !ok:
		return missing(param + ".type")
	case !kind.IsString() || kind.AsString() != "function":
		return wrong(param+".type", `"function"`)
	}
	return nil
}

func fieldsOf(param string, d *template.Dict, names ...string) error {
next:
	for _, field := range d.Keys {
		for _, name := range names {
			if field == name {
				continue next
			}
		}
		at := param + "." + clip(field)
		return fail(at, "'%s' is not a known field", at)
	}
	return nil
}

// functionName checks the name of a function: 1 to 128 letters, digits, "_", "-", ".".
func functionName(param string, d *template.Dict) error {
	v, ok := d.Get("name")
	if !ok {
		return missing(param)
	}
	other := func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.'
	}
	if !v.IsString() || v.AsString() == "" || len(v.AsString()) > 128 || strings.IndexFunc(v.AsString(), other) >= 0 {
		return wrong(param, "1 to 128 letters, digits, '_', '-' or '.'")
	}
	return nil
}

// toolCalls checks the tool calls of an assistant message and sets them in out.
func (k *checker) toolCalls(param string, v template.Value, out *template.Dict) error {
	if v.IsNone() || v.IsList() && v.AsList().Len() == 0 {
		return nil
	}
	if !v.IsList() {
		return wrong(param, "an array")
	}
	calls := make([]template.Value, v.AsList().Len())
	for i, c := range v.AsList().Items {
		var err error
		if calls[i], err = k.toolCall(fmt.Sprintf("%s[%d]", param, i), c); err != nil {
			return err
		}
	}
	out.Set("tool_calls", template.NewList(calls))
	return nil
}

func (k *checker) toolCall(param string, v template.Value) (template.Value, error) {
	if !v.IsDict() {
		return v, wrong(param, "an object")
	}
	in := v.AsDict()
	if err := typeFunction(param, in); err != nil {
		return v, err
	}
	if err := fieldsOf(param, in, "id", "type", "function", "index"); err != nil {
		return v, err
	}
	id, ok := in.Get("id")
	if !ok {
		return v, missing(param + ".id")
	}
	if err := text(param+".id", id); err != nil {
		return v, err
	}
	fn, ok := in.Get("function")
	if !ok {
		return v, missing(param + ".function")
	}
	fn, err := k.function(param+".function", fn)
	if err != nil {
		return v, err
	}
	k.calls[id.AsString()] = true
	out := template.NewDict()
	for _, field := range in.Keys {
		switch field {
		case "id":
			out.AsDict().Set(field, template.Mark(id))
		case "type":
			out.AsDict().Set(field, in.Data[field])
		case "function":
			out.AsDict().Set(field, fn)
		}
	}
	return out, nil
}

func (k *checker) function(param string, v template.Value) (template.Value, error) {
	if !v.IsDict() {
		return v, wrong(param, "an object")
	}
	in := v.AsDict()
	if err := fieldsOf(param, in, "name", "arguments"); err != nil {
		return v, err
	}
	if err := functionName(param+".name", in); err != nil {
		return v, err
	}
	args, ok := in.Get("arguments")
	if !ok {
		return v, missing(param + ".arguments")
	}
	args, err := k.arguments(param+".arguments", args)
	if err != nil {
		return v, err
	}
	out := template.NewDict()
	for _, field := range in.Keys {
		if field == "name" {
			out.AsDict().Set(field, template.Mark(in.Data[field]))
		} else {
			out.AsDict().Set(field, args)
		}
	}
	return out, nil
}

// arguments decodes the arguments of a call, which clients send as a string of JSON: templates that
// walk through them crash on a string or print it quoted twice. A template that wants the string
// gets it; it must hold an object all the same.
func (k *checker) arguments(param string, v template.Value) (template.Value, error) {
	raw := ""
	if v.IsString() {
		if raw = v.AsString(); strings.TrimSpace(raw) == "" {
			raw = "{}" // some clients write no arguments so
		}
		var err error
		if v, err = template.Decode([]byte(raw)); err != nil {
			return v, fail(param, "'%s' is not valid JSON: %v", param, err)
		}
	}
	if !v.IsDict() {
		return v, wrong(param, "a JSON object, as a string")
	}
	if !k.t.traits.argumentText && !k.hermes {
		return template.Mark(v), nil
	}
	if raw == "" {
		var err error
		if raw, err = template.ToJSON(v); err != nil {
			return v, fail(param, "%v", err)
		}
	}
	return template.NewString(template.MarkString(raw)), nil
}
