package responses

import (
	"encoding/json/jsontext"
	"fmt"
	"maps"
	"strings"

	"krater/transport/api"
)

// spaced is the name of a function in a namespace, as the client has it.
type spaced struct{ space, name string }

// qualified returns the name by which a model knows a function of a namespace.
func qualified(space, name string) string { return strings.TrimRight(space, "_") + "__" + name }

// clientName returns the name of a function as the client has it.
func (p *plan) clientName(name string) spaced {
	if s, ok := p.spaces[name]; ok {
		return s
	}
	return spaced{name: name}
}

// qualified returns the name by which the model knows the function of a call.
func (i *item) qualified() string {
	if i.space == "" {
		return i.name
	}
	return qualified(i.space, i.name)
}

// function is a tool in the shape of chat completions.
type function struct {
	Name        string         `json:"name"`
	Description *string        `json:"description,omitzero"`
	Parameters  jsontext.Value `json:"parameters,omitzero"`
	Strict      *bool          `json:"strict,omitzero"`
}

type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

// readTools turns the tools into the shape of chat completions. Functions can be called, alone or in
// a namespace; others are refused, or left out where none may be called. A search of the web is
// always left out: agents offer it with every request, and a model that is not told of it does without.
// spaces has the functions of namespaces by their qualified names.
func readTools(raw jsontext.Value, strict bool) (tools []byte, spaces map[string]spaced, err *api.Error) {
	if api.Absent(raw) {
		return nil, nil, nil
	}
	out, spaces, err := readToolList("tools", raw, strict, true)
	if err != nil || len(out) == 0 {
		return nil, nil, err
	}
	return api.Marshal(out), spaces, nil
}

// readToolList reads a list of tools. outer: it may have namespaces.
func readToolList(param string, raw jsontext.Value, strict, outer bool) (out []tool, spaces map[string]spaced, err *api.Error) {
	list, err := elements(param, raw, maxItems)
	if err != nil {
		return nil, nil, err
	}
	spaces = map[string]spaced{}
	for i, raw := range list {
		param := fmt.Sprintf("%s[%d]", param, i)
		var head struct {
			Type *string        `json:"type"`
			Rest jsontext.Value `json:",embed"`
		}
		if err := api.DecodeAt(param, raw, &head); err != nil {
			return nil, nil, err
		}
		kind := ""
		if head.Type != nil {
			kind = *head.Type
		}
		switch {
		case kind == "function":
			f, err := readFunction(param, raw)
			if err != nil && strict {
				return nil, nil, err
			} else if err == nil {
				out = append(out, tool{"function", f})
			}
		case kind == "namespace" && outer:
			inner, names, err := readNamespace(param, raw, strict)
			if err != nil {
				return nil, nil, err
			}
			if out = append(out, inner...); len(out) > maxItems {
				return nil, nil, api.Invalid(param, "'%s': there are more than %d functions", param, maxItems)
			}
			maps.Copy(spaces, names)
		case strings.HasPrefix(kind, "web_search"):
		case strict:
			return nil, nil, api.Unsupported(param+".type", "'%s.type' must be function or namespace: other tools are not supported", param)
		}
	}
	return out, spaces, nil
}

// readNamespace reads the functions of a namespace, under their qualified names.
func readNamespace(param string, raw jsontext.Value, strict bool) (out []tool, spaces map[string]spaced, err *api.Error) {
	var in struct {
		Type        string         `json:"type"`
		Name        *string        `json:"name"`
		Description *string        `json:"description"`
		Tools       jsontext.Value `json:"tools"`
	}
	if err := api.DecodeAt(param, raw, &in); err != nil {
		return nil, nil, err
	}
	space, err := required(param, "name", in.Name, maxCallID)
	if err != nil {
		return nil, nil, err
	}
	if out, _, err = readToolList(param+".tools", in.Tools, strict, false); err != nil {
		return nil, nil, err
	}
	spaces = map[string]spaced{}
	for i := range out {
		f := &out[i].Function
		name := qualified(space, f.Name)
		spaces[name] = spaced{space, f.Name}
		f.Name = name
	}
	return out, spaces, nil
}

// readFunction reads a tool that is a function.
func readFunction(param string, raw jsontext.Value) (function, *api.Error) {
	var in struct {
		Type        string         `json:"type"`
		Name        *string        `json:"name"`
		Description *string        `json:"description"`
		Parameters  jsontext.Value `json:"parameters"`
		Strict      *bool          `json:"strict"`
	}
	if err := api.DecodeAt(param, raw, &in); err != nil {
		return function{}, err
	}
	if in.Name == nil {
		return function{}, api.BadRequest(api.CodeMissing, param+".name", "'%s.name' is missing", param)
	}
	if api.Absent(in.Parameters) {
		in.Parameters = nil
	}
	return function{*in.Name, in.Description, in.Parameters, in.Strict}, nil
}
