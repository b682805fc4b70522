package api

import (
	"encoding/json/jsontext"
	"slices"

	"krater/actors/engine"
)

// ToolChoice says which tools an answer calls.
type ToolChoice struct {
	Mode  string   // none, auto or required
	Names []string // with auto and required: of these tools only; nil: of all
	named bool     // required of one tool
}

// ReadToolChoice reads the field tool_choice in the forms of chat completions and of responses.
func ReadToolChoice(raw jsontext.Value) (c ToolChoice, err *Error) {
	const param = "tool_choice"
	c.Mode = "auto"
	if Absent(raw) {
		return c, nil
	}
	switch raw.Kind() {
	case '"':
		if err := DecodeAt(param, raw, &c.Mode); err != nil {
			return c, err
		}
	case '{':
		return readNamed(param, raw)
	default:
		return c, BadRequest(CodeInvalidType, param, "'tool_choice' must be a string or an object")
	}
	if c.Mode != "auto" && c.Mode != "none" && c.Mode != "required" {
		return c, Invalid(param, "'tool_choice' must be auto, none, required or name a function, not '%s'", Clip(c.Mode))
	}
	return c, nil
}

// toolRef names a tool: {"type":"function","function":{"name":...}} or, of responses, with the name
// beside the type.
type toolRef struct {
	Type     string  `json:"type"`
	Name     *string `json:"name"`
	Function *struct {
		Name *string `json:"name"`
	} `json:"function"`
}

func (r *toolRef) name() *string {
	if r.Function != nil {
		return r.Function.Name
	}
	return r.Name
}

func readNamed(param string, raw jsontext.Value) (c ToolChoice, err *Error) {
	kind, ok := MemberString(raw, "type")
	if ok && kind == "allowed_tools" {
		return readAllowed(param, raw)
	}
	if !ok || kind != "function" {
		return c, Unsupported(param+".type", "'tool_choice.type' must be function or allowed_tools")
	}
	var ref toolRef
	if err := DecodeAt(param, raw, &ref); err != nil {
		return c, err
	}
	if ref.name() == nil {
		return c, BadRequest(CodeMissing, param+".function.name", "'tool_choice.function.name' is required")
	}
	return ToolChoice{Mode: "required", Names: []string{*ref.name()}, named: true}, nil
}

// readAllowed reads {"type":"allowed_tools","mode":...,"tools":[...]}, whose last two members are in an
// object allowed_tools of chat completions.
func readAllowed(param string, raw jsontext.Value) (c ToolChoice, err *Error) {
	type allowed struct {
		Mode  string         `json:"mode"`
		Tools jsontext.Value `json:"tools"`
	}
	var in struct {
		Type  string   `json:"type"`
		Inner *allowed `json:"allowed_tools"`
		allowed
	}
	if err := DecodeAt(param, raw, &in); err != nil {
		return c, err
	}
	if in.Inner != nil {
		in.allowed = *in.Inner
	}
	if in.Mode != "auto" && in.Mode != "required" {
		return c, Invalid(param+".mode", "'tool_choice.mode' must be auto or required, not '%s'", Clip(in.Mode))
	}
	c = ToolChoice{Mode: in.Mode, Names: []string{}}
	_, err = EachRaw(param+".tools", in.Tools, MaxTools, func(param string, raw jsontext.Value) *Error {
		var ref toolRef
		if err := DecodeAt(param, raw, &ref); err != nil {
			return err
		}
		if ref.Type != "function" || ref.name() == nil {
			return Invalid(param, "'%s' must name a function", param)
		}
		c.Names = append(c.Names, *ref.name())
		return nil
	})
	return c, err
}

// Apply puts the choice among tools, a checked list in the shape of chat completions, into parts.
func (c ToolChoice) Apply(parts *engine.Parts, tools jsontext.Value) *Error {
	const param = "tool_choice"
	var names []string
	list := []byte{'['}
	if _, err := EachRaw("tools", tools, MaxTools, func(_ string, raw jsontext.Value) *Error {
		var tool struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if err := Lenient(raw, &tool); err != nil {
			return err
		}
		names = append(names, tool.Function.Name)
		if c.Names == nil || c.named || slices.Contains(c.Names, tool.Function.Name) {
			if len(list) > 1 {
				list = append(list, ',')
			}
			list = append(list, raw...)
		}
		return nil
	}); err != nil && !Absent(tools) {
		return err
	}
	for _, name := range c.Names {
		if !slices.Contains(names, name) {
			return Invalid(param, "'tool_choice' names the tool '%s', which is not among 'tools'", Clip(name))
		}
	}
	if len(names) > 0 && c.Mode != "none" && len(list) > 1 {
		parts.Tools = append(list, ']')
	}
	if c.Mode != "required" {
		return nil
	}
	if len(names) == 0 {
		return Invalid(param, "'tool_choice' demands a call, and there are no 'tools'")
	}
	if parts.Call = c.Names; parts.Call == nil {
		parts.Call = names
	}
	return nil
}
