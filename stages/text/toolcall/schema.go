package toolcall

import (
	"encoding/json"
	"encoding/json/jsontext"
	"strings"
)

// maxKinds bounds the parameters whose types are kept.
const maxKinds = 1 << 10

// types is a set of JSON types.
type types uint8

const (
	stringType types = 1 << iota
	numberType
	boolType
	nullType
	objectType
	arrayType

	allTypes = stringType | numberType | boolType | nullType | objectType | arrayType
)

var typeNames = map[string]types{
	"string": stringType, "str": stringType, "enum": stringType, "number": numberType, "integer": numberType, "int": numberType, "float": numberType,
	"boolean": boolType, "bool": boolType, "null": nullType, "object": objectType, "dict": objectType, "array": arrayType, "list": arrayType,
}

// Bounds of the work for one parameter: how deep schemas are followed, and how many bytes of them are
// read. What is beyond is not known.
const (
	maxRefs   = 16
	maxSchema = 64 << 10
)

// schema is the part of a JSON schema that decides the types of values.
type schema struct {
	Type       json.RawMessage            `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	Items      json.RawMessage            `json:"items"`
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	AllOf      []json.RawMessage          `json:"allOf"`
	Ref        string                     `json:"$ref"`
	Defs       map[string]json.RawMessage `json:"$defs"`
	Old        map[string]json.RawMessage `json:"definitions"`
}

// tools are the schemas of the parameters of functions, by name. A schema is read once, when the
// model first calls the function.
type tools map[string]*tool

type tool struct {
	parameters json.RawMessage
	root       *schema
	kinds      map[string]types // of the parameters seen so far
}

// readTools reads a list of tools in the chat-completions shape. What it cannot read it leaves out:
// such a parameter may have a value of any type.
func readTools(list []byte) tools {
	var in []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	t := tools{}
	if json.Unmarshal(list, &in) != nil {
		return t
	}
	for _, one := range in {
		t[one.Function.Name] = &tool{parameters: one.Function.Parameters, kinds: map[string]types{}}
	}
	return t
}

// node is a schema and the one that its references are looked up in.
type node struct {
	*schema
	root *schema
	left *int // bytes that may still be read
}

// of returns the schema of a function's parameters.
func (t tools) of(function string) node {
	f := t[function]
	if f == nil {
		f = &tool{root: &schema{}}
	}
	if f.root == nil {
		left := len(f.parameters) + maxSchema
		f.root = node{left: &left}.at(f.parameters).schema
	}
	left := maxSchema
	return node{f.root, f.root, &left}
}

// typesOf returns the types of a function's parameter.
func (t tools) typesOf(function, name string) types {
	f := t[function]
	if f == nil {
		return allTypes
	}
	kinds, ok := f.kinds[name]
	if !ok {
		if kinds = t.of(function).property(name).types(); len(f.kinds) < maxKinds {
			f.kinds[name] = kinds
		}
	}
	return kinds
}

// at returns a part of the schema.
func (n node) at(raw json.RawMessage) node {
	n.schema = &schema{}
	if *n.left -= len(raw) + 64; *n.left >= 0 && json.Unmarshal(raw, n.schema) != nil {
		n.schema = &schema{} // true, false, or nothing that is a schema
	}
	return n
}

// resolve follows a reference.
func (n node) resolve() node {
	for range maxRefs {
		name, ok := strings.CutPrefix(n.Ref, "#/$defs/")
		defs := n.root.Defs
		if !ok {
			if name, ok = strings.CutPrefix(n.Ref, "#/definitions/"); !ok {
				return n
			}
			defs = n.root.Old
		}
		n = n.at(defs[name])
	}
	return n
}

// property returns the schema of a member, element that of an array's elements.
func (n node) property(name string) node {
	return n.find(0, func(s *schema) json.RawMessage { return s.Properties[name] })
}

func (n node) element() node {
	return n.find(0, func(s *schema) json.RawMessage { return s.Items })
}

// find returns the first part that a schema or one of its alternatives has.
func (n node) find(depth int, part func(*schema) json.RawMessage) node {
	n = n.resolve()
	if raw := part(n.schema); len(raw) > 0 {
		return n.at(raw)
	}
	if depth < maxRefs {
		for _, list := range [][]json.RawMessage{n.AnyOf, n.OneOf, n.AllOf} {
			for _, raw := range list {
				if f := n.at(raw).find(depth+1, part); f.schema != nil {
					return f
				}
			}
		}
	}
	if n.schema = nil; depth == 0 {
		n.schema = &schema{}
	}
	return n
}

// types returns the types that a value may have.
func (n node) types() types {
	if t := n.typesAt(0); t != 0 {
		return t
	}
	return allTypes
}

// typesAt is types, 0 where the schema does not say.
func (n node) typesAt(depth int) types {
	if depth > maxRefs {
		return 0
	}
	n = n.resolve()
	if t := namedTypes(n.Type); t != 0 {
		return t
	}
	t := kindOf(n.Const)
	for _, raw := range n.Enum {
		t |= kindOf(raw)
	}
	for _, list := range [][]json.RawMessage{n.AnyOf, n.OneOf, n.AllOf} {
		for _, raw := range list {
			t |= n.at(raw).typesAt(depth + 1)
		}
	}
	switch {
	case t != 0:
	case len(n.Properties) > 0:
		t = objectType
	case len(n.Items) > 0:
		t = arrayType
	}
	return t
}

// namedTypes reads the keyword "type", a name or a list of names.
func namedTypes(raw json.RawMessage) types {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return typeNames[strings.ToLower(one)]
	}
	var list []string
	_ = json.Unmarshal(raw, &list) // else there are none
	var t types
	for _, name := range list {
		t |= typeNames[strings.ToLower(name)]
	}
	return t
}

// kindOf returns the type of a JSON value, 0 for none.
func kindOf(raw []byte) types {
	switch jsontext.Value(raw).Kind() {
	case '"':
		return stringType
	case '0':
		return numberType
	case 't', 'f':
		return boolType
	case 'n':
		return nullType
	case '{':
		return objectType
	case '[':
		return arrayType
	}
	return 0
}

// value returns the JSON of a parameter's text: the value that the text spells if the parameter may
// have its type, and a string otherwise.
func (t types) value(text string) string {
	word := strings.TrimSpace(text)
	switch word {
	case "True", "False":
		if t&boolType != 0 {
			word = strings.ToLower(word)
		}
	case "None":
		if t&nullType != 0 {
			word = "null"
		}
	}
	if t&(arrayType|objectType) != 0 && strings.ContainsAny(word[:min(1, len(word))], "[{") {
		word = python(word)
	}
	v := jsontext.Value(word)
	kind := types(0)
	if v.IsValid(jsontext.AllowDuplicateNames(true)) { // the writer of the arguments keeps the first
		kind = kindOf(v)
	}
	switch {
	case kind&t&^stringType != 0, kind != 0 && t&stringType == 0:
		return word
	case kind == stringType && t == allTypes:
		return word // nothing is known of the parameter, and the model wrote quotes
	}
	return quote(text)
}

// python returns the JSON of a list or a dict as Python prints it, which some templates show to the
// model: strings in single quotes, and other words for literals. JSON it returns unchanged.
func python(text string) string {
	if jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			end := i + 1
			for end < len(text) && text[end] != c {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return text
			}
			var o object // makes JSON of other escapes, too
			o.text(`{"":"` + escapeQuotes(text[i+1:end]) + `"}`)
			s := o.take()
			b.WriteString(s[len(`{"":`) : len(s)-1])
			i = end
		case c >= 'A' && c <= 'Z':
			end := i
			for end < len(text) && text[end]|0x20 >= 'a' && text[end]|0x20 <= 'z' {
				end++
			}
			b.WriteString(literal(text[i:end]))
			i = end - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// escapeQuotes puts a backslash before the double quotes that have none.
func escapeQuotes(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			if b.WriteByte('\\'); i+1 < len(s) {
				i++
				b.WriteByte(s[i])
			}
		case '"':
			b.WriteString(`\"`)
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
