package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxBytes bounds the input of Decode. Doors have smaller limits.
	MaxBytes = 64 << 20
	// MaxDepth bounds the nesting of arrays and objects.
	MaxDepth = 128
	// maxEcho bounds how much of a client's own text an error repeats, in bytes.
	maxEcho = 96
)

// Decode reads one strict JSON value into dst: names match exactly, and duplicate keys, lone
// surrogates (escaped too), invalid UTF-8, trailing bytes, too deep nesting, wrong types and
// unknown fields are each a 400 that names the field. null leaves a pointer nil, like an absent
// field. dst must bound its slices (StringList, IDs) or keep them raw (jsontext.Value): Decode
// bounds bytes and depth only.
func Decode(data []byte, dst any) *Error { return DecodeAt("", data, dst) }

// DecodeAt is Decode for a value kept raw earlier: param is its place in the request and the prefix
// of the fields that errors name.
func DecodeAt(param string, data []byte, dst any) *Error {
	if len(data) > MaxBytes {
		return BadRequest(CodeTooLarge, param, "the request is longer than %d bytes", MaxBytes)
	}
	if deeper(data, MaxDepth) {
		return BadRequest(CodeInvalidJSON, param, "the JSON is nested deeper than %d levels", MaxDepth)
	}
	err := json.Unmarshal(data, dst, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		e := *own
		e.Param = joinParam(param, own.Param)
		return &e
	}
	if sem, ok := errors.AsType[*json.SemanticError](err); ok {
		return semantic(param, sem)
	}
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return syntactic(param, syn)
	}
	return BadRequest(CodeInvalidJSON, param, "the request is not valid JSON")
}

// deeper reports whether data nests more than limit levels, without allocating. On malformed JSON
// it may be wrong either way; the decoder then refuses it.
func deeper(data []byte, limit int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// TypeError is the error of an UnmarshalJSONFrom when the JSON kind does not fit. Want completes
// "must be".
type TypeError struct{ Want string }

func (e *TypeError) Error() string { return "must be " + e.Want }

// ValueError is the error of an UnmarshalJSONFrom for a refused value. Reason completes the field's
// name.
type ValueError struct{ Reason string }

func (e *ValueError) Error() string { return e.Reason }

func semantic(prefix string, err *json.SemanticError) *Error {
	param := joinParam(prefix, pointerParam(err.JSONPointer))
	name := subject(param)
	if typed, ok := errors.AsType[*TypeError](err.Err); ok {
		return BadRequest(CodeInvalidType, param, "%s must be %s", name, typed.Want)
	}
	if value, ok := errors.AsType[*ValueError](err.Err); ok {
		return BadRequest(CodeInvalidValue, param, "%s %s", name, value.Reason)
	}
	if errors.Is(err.Err, json.ErrUnknownName) {
		return BadRequest(CodeUnknownField, param, "unknown field '%s'", param)
	}
	want := typeWords(err.GoType)
	switch {
	case errors.Is(err.Err, strconv.ErrRange):
		return BadRequest(CodeInvalidValue, param, "%s is out of range", name)
	case err.Err != nil && err.JSONKind == '0':
		return BadRequest(CodeInvalidType, param, "%s must be %s", name, want)
	}
	return BadRequest(CodeInvalidType, param, "%s must be %s, not %s", name, want, kindWords(err.JSONKind))
}

func syntactic(prefix string, err *jsontext.SyntacticError) *Error {
	param := joinParam(prefix, pointerParam(err.JSONPointer))
	if errors.Is(err.Err, jsontext.ErrDuplicateName) {
		return BadRequest(CodeInvalidJSON, param, "duplicate key '%s'", param)
	}
	reason := Clip(err.Err.Error())
	if param == "" {
		return BadRequest(CodeInvalidJSON, "", "the request is not valid JSON: %s after byte %d", reason, err.ByteOffset)
	}
	return BadRequest(CodeInvalidJSON, param, "the request is not valid JSON: %s in '%s' after byte %d", reason, param, err.ByteOffset)
}

func subject(param string) string {
	if param == "" {
		return "the request"
	}
	return "'" + param + "'"
}

// pointerParam writes a JSON pointer as clients name fields: messages[0].content.
func pointerParam(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return Clip(b.String())
}

func joinParam(prefix, rest string) string {
	switch {
	case prefix == "" || rest == "":
		return prefix + rest
	case rest[0] == '[':
		return prefix + rest
	}
	return prefix + "." + rest
}

// Clip bounds text that came from the client, on a character's border.
func Clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxEcho {
		return s
	}
	cut := maxEcho
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

func typeWords(t reflect.Type) string {
	if t == nil {
		return "of another type"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a non-negative integer"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "an array"
	}
	return "an object"
}

func kindWords(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '[':
		return "an array"
	case '{':
		return "an object"
	}
	return "that"
}
