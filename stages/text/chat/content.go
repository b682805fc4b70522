package chat

import (
	"fmt"
	"strings"

	"krater/stages/text/chat/template"
)

// form is the shape of content that a template handles for a role.
type form uint8

const (
	formText  form = iota // strings: parts are joined by line ends
	formParts             // arrays of parts: a string becomes one part
	formBoth              // either: content is handed on as it came
)

// content checks the content of a message and converts it to the template's form.
func (k *checker) content(param, role string, v template.Value) (template.Value, error) {
	switch {
	case v.IsNone():
		return v, nil // complete() judges it
	case v.IsString():
		return k.shape(role, k.mark(role, v.AsString())), nil
	case !v.IsList():
		return v, wrong(param, "a string or an array of content parts")
	case v.AsList().Len() == 0:
		return v, wrong(param, "an array with at least one part")
	}
	parts := make([]template.Value, v.AsList().Len())
	for i, p := range v.AsList().Items {
		var err error
		if parts[i], err = k.part(fmt.Sprintf("%s[%d]", param, i), role, p); err != nil {
			return v, err
		}
	}
	return k.shape(role, template.NewList(parts)), nil
}

// part checks one content part: only text has a place in these models.
func (k *checker) part(param, role string, v template.Value) (template.Value, error) {
	if !v.IsDict() {
		return v, wrong(param, "an object")
	}
	in := v.AsDict()
	kind, ok := in.Get("type")
	switch {
	case !ok:
		return v, missing(param + ".type")
	case !kind.IsString():
		return v, wrong(param+".type", "a string")
	case kind.AsString() != "text":
		return v, fail(param+".type", "content parts of type %q are not supported, only \"text\"", clip(kind.AsString()))
	}
	s, ok := in.Get("text")
	if !ok {
		return v, missing(param + ".text")
	}
	if !s.IsString() {
		return v, wrong(param+".text", "a string")
	}
	for _, field := range in.Keys {
		switch field {
		case "type", "text", "cache_control", "prompt_cache_breakpoint": // the last two never reach the template
		default:
			return v, fail(param+"."+field, "'%s.%s' is not a field of a text part", param, field)
		}
	}
	return textPart(k.mark(role, s.AsString())), nil
}

func textPart(s template.Value) template.Value {
	v := template.NewDict()
	v.AsDict().Set("type", template.NewString("text"))
	v.AsDict().Set("text", s)
	return v
}

func (k *checker) mark(role, s string) template.Value {
	if role == "assistant" {
		return k.answer(s)
	}
	return template.NewString(template.MarkString(s))
}

// shape converts content to the form that the template handles for the role.
func (k *checker) shape(role string, v template.Value) template.Value {
	switch f := k.t.traits.forms[k.t.traits.called(role)]; {
	case v.IsList() && f == formText:
		var b strings.Builder
		for i, p := range v.AsList().Items {
			if i > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(p.AsDict().Data["text"].AsString())
		}
		return template.NewString(b.String())
	case v.IsString() && f == formParts:
		return template.NewList([]template.Value{textPart(v)})
	}
	return v
}

// clip shortens a client's words in an error.
func clip(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "..."
	}
	return s
}
