package chat

import (
	"slices"
	"strings"

	"krater/stages/text/chat/template"
)

// typeIndent is one level of TypeScript.
const typeIndent = "  "

// typeWriter writes schemas as TypeScript. Beyond limit bytes it writes nothing more.
type typeWriter struct {
	b     strings.Builder
	limit int
}

func (w *typeWriter) text(parts ...string) {
	for _, s := range parts {
		if w.b.Len() <= w.limit {
			w.b.WriteString(s)
		}
	}
}

// comment writes the lines of a text as comments; empty lines stay empty.
func (w *typeWriter) comment(text, indent string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			w.text(indent, "// ", line)
		}
		w.text("\n")
	}
}

// about writes what is said about a schema: its description and its constraints.
func (w *typeWriter) about(s *schema, indent string) {
	if s.description != "" {
		w.comment(s.description, indent)
	}
	if len(s.constraints) > 0 {
		w.text(indent, "// ", strings.Join(s.constraints, ", "), "\n")
	}
}

// function writes the types of a function.
func (w *typeWriter) function(fn *template.Dict) error {
	name, _ := fn.Get("name")
	parameters, _ := fn.Get("parameters")
	r := &schemaReader{defs: map[string]template.Value{}}
	root := &schema{kind: objectKind}
	if err := r.object(root, parameters.AsDict()); err != nil {
		return err
	}
	self := r.self
	if self { // in the order of the properties
		w.text("interface parameters {")
		for i, f := range root.fields {
			w.text(map[bool]string{true: "\n", false: ",\n"}[i == 0])
			w.field(f, typeIndent)
		}
		w.text(map[bool]string{true: "\n", false: ""}[len(root.fields) > 0], "}\n")
	}
	for _, def := range slices.Clone(r.names) { // reading one may add others, which are not written
		v := r.defs[def]
		s, err := r.read(v)
		if err != nil {
			return err
		}
		if v.IsBool() {
			return errSchema
		}
		if s.description != "" {
			w.comment(s.description, "")
		}
		w.text("interface ", def, " ")
		w.schema(s, "")
		w.text("\n")
	}
	if text, ok := fn.Get("description"); ok && text.AsString() != "" {
		w.comment(text.AsString(), "")
	}
	w.text("type ", name.AsString(), " = (_: ")
	if self {
		w.text("parameters")
	} else {
		w.schema(root, "")
	}
	w.text(") => any;\n")
	return nil
}

func (w *typeWriter) field(f field, indent string) {
	w.about(f.of, indent)
	if f.initial != "" {
		w.text(indent, "// Default: ", f.initial, "\n")
	}
	w.text(indent, f.name, map[bool]string{true: "?", false: ""}[f.optional], ": ")
	w.schema(f.of, indent)
}

func (w *typeWriter) schema(s *schema, indent string) {
	inner := indent + typeIndent
	switch s.kind {
	case plainKind:
		w.text(s.name)
	case anyOfKind:
		for i, one := range s.list {
			if i > 0 {
				w.text(" | ")
			}
			w.schema(one, indent)
		}
	case arrayKind:
		item := s.list[0]
		w.text("Array<")
		if item.description == "" && len(item.constraints) == 0 {
			w.schema(item, indent)
		} else {
			w.text("\n")
			w.about(item, inner)
			w.text(inner)
			w.schema(item, inner)
			w.text("\n", indent)
		}
		w.text(">")
	case objectKind:
		w.object(s, indent, inner)
	}
}

// object writes required properties before the others.
func (w *typeWriter) object(s *schema, indent, inner string) {
	if len(s.fields) == 0 && s.rest == nil {
		w.text("{}")
		return
	}
	separator := "{\n"
	for _, optional := range []bool{false, true} {
		for _, f := range s.fields { // by name, as keys are in order
			if f.optional == optional {
				w.text(separator)
				w.field(f, inner)
				separator = ",\n"
			}
		}
	}
	if s.rest != nil {
		w.text(separator, inner, "[k: string]: ")
		w.schema(s.rest, inner)
	}
	w.text("\n", indent, "}")
}
