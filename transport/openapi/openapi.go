// Package openapi describes routes as an OpenAPI document, made of the Go types that the routes read
// and write.
package openapi

import (
	"encoding/json/jsontext"
	"maps"
	"reflect"
	"slices"
	"strings"

	"krater/transport/api"
)

// Route is a route in the document. Request and Answer are values of the wire types, nil where there
// is no body. Events is the type of a stream's events, if the route has a stream.
type Route struct {
	Method, Path string
	Summary      string
	Request      any
	Answer       any
	Events       any
	EventsType   string // Content-Type of a stream; text/event-stream if empty
	Query        []string
	Hints        bool // the table of hints holds for the request
}

// Document returns the document of a server of this version.
func Document(version string, routes []Route) map[string]any {
	b := &builder{schemas: map[string]any{}}
	paths := map[string]map[string]any{}
	for _, r := range routes {
		path := strings.ReplaceAll(strings.ReplaceAll(r.Path, "...}", "}"), "{$}", "")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(r.Method)] = b.operation(path, r)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": "Krater", "version": version, "description": "OpenAI, Anthropic and Ollama APIs of one model. Errors of the OpenAI routes have the schema Error."},
		"paths":   paths,
		"components": map[string]any{
			"schemas":         b.schemas,
			"securitySchemes": map[string]any{"bearer": map[string]any{"type": "http", "scheme": "bearer"}, "key": map[string]any{"type": "apiKey", "in": "header", "name": "x-api-key"}},
		},
		"security": []any{map[string]any{"bearer": []any{}}, map[string]any{"key": []any{}}, map[string]any{}},
	}
}

// builder collects the schemas of named types.
type builder struct{ schemas map[string]any }

func (b *builder) operation(path string, r Route) map[string]any {
	op := map[string]any{"summary": r.Summary, "responses": map[string]any{
		"200": b.answer(r), "4XX": map[string]any{"description": "an error", "content": content("application/json", b.of(reflect.TypeFor[errorAnswer]()))},
	}}
	var params []any
	for _, name := range wildcards(path) {
		params = append(params, map[string]any{"name": name, "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
	}
	for _, name := range r.Query {
		params = append(params, map[string]any{"name": name, "in": "query", "schema": map[string]any{"type": "string"}})
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.Request != nil {
		schema := b.of(reflect.TypeOf(r.Request))
		if r.Hints {
			b.hints(schema)
		}
		op["requestBody"] = map[string]any{"required": true, "content": content("application/json", schema)}
	}
	return op
}

// errorAnswer is the wire form of api.Error.
type errorAnswer struct {
	Error api.Body `json:"error"`
}

func (b *builder) answer(r Route) map[string]any {
	types := map[string]any{}
	if r.Answer != nil {
		maps.Copy(types, content("application/json", b.of(reflect.TypeOf(r.Answer))))
	}
	if r.Events != nil {
		kind := r.EventsType
		if kind == "" {
			kind = "text/event-stream"
		}
		maps.Copy(types, content(kind, b.of(reflect.TypeOf(r.Events))))
	}
	out := map[string]any{"description": "the answer"}
	if len(types) > 0 {
		out["content"] = types
	}
	return out
}

func content(kind string, schema any) map[string]any {
	return map[string]any{kind: map[string]any{"schema": schema}}
}

// hints adds the fields of the table of hints to a request's schema.
func (b *builder) hints(ref map[string]any) {
	name, ok := strings.CutPrefix(ref["$ref"].(string), refPrefix)
	if !ok {
		return
	}
	properties := b.schemas[name].(map[string]any)["properties"].(map[string]any)
	for name, note := range api.HintNotes() {
		if _, own := properties[name]; !own && !strings.Contains(name, ".") {
			properties[name] = map[string]any{"description": note}
		}
	}
}

// wildcards returns the names in a path.
func wildcards(path string) (names []string) {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, "{") {
			names = append(names, strings.Trim(part, "{}"))
		}
	}
	return names
}

const refPrefix = "#/components/schemas/"

// special are the schemas of types that read and write themselves.
var special = map[reflect.Type]map[string]any{
	reflect.TypeFor[jsontext.Value](): {},
	reflect.TypeFor[api.StringList](): {"oneOf": []any{text, map[string]any{"type": "array", "items": text, "maxItems": api.MaxStops}}},
	reflect.TypeFor[api.IDs]():        {"type": "array", "items": integer, "maxItems": api.MaxStopIDs},
	reflect.TypeFor[api.LogitBias]():  {"type": "object", "additionalProperties": map[string]any{"type": "number", "minimum": -100, "maximum": 100}},
	reflect.TypeFor[api.Prompts](): {"oneOf": []any{
		text, map[string]any{"type": "array", "items": text}, map[string]any{"type": "array", "items": integer},
		map[string]any{"type": "array", "items": map[string]any{"type": "array", "items": integer}},
	}},
	reflect.TypeFor[api.Error](): {"type": "object"},
}

var (
	text    = map[string]any{"type": "string"}
	integer = map[string]any{"type": "integer"}
)

// of returns the schema of a type, a reference for a struct.
func (b *builder) of(t reflect.Type) map[string]any {
	if s, ok := special[t]; ok {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return b.of(t.Elem())
	case reflect.String:
		return text
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return integer
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": b.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": b.of(t.Elem())}
	case reflect.Struct:
		return b.object(t)
	}
	return map[string]any{}
}

// object returns a reference to the schema of a struct, or of one without a name the schema.
func (b *builder) object(t reflect.Type) map[string]any {
	if f, ok := t.FieldByName("Set"); ok && t.NumField() == 2 && f.Type.Kind() == reflect.Bool { // api.Nullable
		return b.of(t.Field(1).Type)
	}
	name := typeName(t)
	if name == "" {
		return b.members(t)
	}
	if _, known := b.schemas[name]; !known {
		b.schemas[name] = map[string]any{} // for a type that has itself as a part
		b.schemas[name] = b.members(t)
	}
	return map[string]any{"$ref": refPrefix + name}
}

// typeName returns the name of a type's schema: package and type, without the arguments of a generic
// one's packages.
func typeName(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if name == "" {
		return ""
	}
	if generic {
		arg = strings.TrimSuffix(arg, "]")
		name += arg[strings.LastIndexAny(arg, ".")+1:]
	}
	pkg := t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]
	if pkg == "api" || pkg == "openapi" {
		return strings.ToUpper(name[:1]) + name[1:]
	}
	return pkg + "." + strings.ToUpper(name[:1]) + name[1:]
}

// members returns the schema of a struct's fields. A field that is no pointer and never left out is
// required.
func (b *builder) members(t reflect.Type) map[string]any {
	properties := map[string]any{}
	var required []string
	b.fields(t, properties, &required)
	out := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

func (b *builder) fields(t reflect.Type, properties map[string]any, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case f.Anonymous && name == "":
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			b.fields(inner, properties, required)
		case !f.IsExported() || name == "-" || tag == "" || options == "embed":
		default:
			properties[name] = b.of(f.Type)
			if f.Type.Kind() != reflect.Pointer && options == "" {
				*required = append(*required, name)
			}
		}
	}
}
