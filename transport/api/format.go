package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"

	"krater/actors/engine"
)

// Limits of a format.
const (
	maxFormat  = 1 << 20 // bytes of a schema, an expression or a grammar
	maxAnswers = 4096    // of a choice
)

// FormatFields are the fields of other servers for the format of an answer: vLLM's, old and new, and
// llama.cpp's. One of them may be given.
type FormatFields struct {
	StructuredOutputs jsontext.Value `json:"structured_outputs"`
	GuidedJSON        jsontext.Value `json:"guided_json"`
	GuidedRegex       *string        `json:"guided_regex"`
	GuidedChoice      jsontext.Value `json:"guided_choice"`
	GuidedGrammar     *string        `json:"guided_grammar"`
	GuidedSpace       *string        `json:"guided_whitespace_pattern"`
	Grammar           *string        `json:"grammar"`
	JSONSchema        jsontext.Value `json:"json_schema"`
}

// Lenient reads what dst has fields for.
func Lenient(raw jsontext.Value, dst any) *Error {
	if json.Unmarshal(raw, dst) != nil {
		return BadRequest(CodeInvalidJSON, "", "the request is not valid JSON")
	}
	return nil
}

// SetFormat gives a request its format, of which there may be one.
func SetFormat(req *engine.Request, f *engine.Format) *Error {
	switch {
	case f == nil:
		return nil
	case req.Format != nil:
		return Invalid(f.Param, "'%s' and '%s' are both given; give one", req.Format.Param, f.Param)
	case len(f.Source) > maxFormat:
		return Invalid(f.Param, "'%s' is longer than %d bytes", f.Param, maxFormat)
	}
	req.Format = f
	return nil
}

// TextFormat reads response_format, or the format of a response's text, whose schema is not in an
// object of its own. nil is plain text.
func TextFormat(param string, raw jsontext.Value) (*engine.Format, *Error) {
	if Absent(raw) {
		return nil, nil
	}
	kind, ok := MemberString(raw, "type")
	if !ok {
		return nil, BadRequest(CodeInvalidType, param, "'%s' must be an object with a string 'type'", param)
	}
	type schema struct {
		Name        *string        `json:"name"`
		Description *string        `json:"description"`
		Schema      jsontext.Value `json:"schema"`
		Strict      *bool          `json:"strict"`
	}
	switch kind {
	case "text":
		var in struct {
			Type string `json:"type"`
		}
		return nil, DecodeAt(param, raw, &in)
	case "json_object":
		var in struct {
			Type   string         `json:"type"`
			Schema jsontext.Value `json:"schema"` // of llama.cpp
		}
		if err := DecodeAt(param, raw, &in); err != nil || Absent(in.Schema) {
			return &engine.Format{Kind: engine.AnyObject, Param: param}, err
		}
		return &engine.Format{Kind: engine.JSONSchema, Source: in.Schema, Param: param + ".schema"}, nil
	case "json_schema":
		var in struct {
			Type  string  `json:"type"`
			Inner *schema `json:"json_schema"`
			schema
		}
		if err := DecodeAt(param, raw, &in); err != nil {
			return nil, err
		}
		at := param
		if in.Inner != nil {
			in.schema, at = *in.Inner, param+".json_schema"
		}
		if Absent(in.Schema) {
			return nil, BadRequest(CodeMissing, at+".schema", "'%s.schema' is required", at)
		}
		return &engine.Format{Kind: engine.JSONSchema, Source: in.Schema, Closed: isTrue(in.Strict), Param: at + ".schema"}, nil
	}
	return nil, Unsupported(param, "'%s' of type '%s' is not supported: text, json_object and json_schema are", param, Clip(kind))
}

// format reads the fields into a request.
func (f *FormatFields) format(req *engine.Request) *Error {
	text := func(param string, kind engine.FormatKind, source *string) *Error {
		if source == nil || *source == "" {
			return nil
		}
		return SetFormat(req, &engine.Format{Kind: kind, Source: []byte(*source), Param: param})
	}
	if !Absent(f.StructuredOutputs) {
		if err := f.structured(req); err != nil {
			return err
		}
	}
	if err := setSchema(req, "guided_json", f.GuidedJSON); err != nil {
		return err
	}
	if err := setSchema(req, "json_schema", f.JSONSchema); err != nil {
		return err
	}
	if err := setChoice(req, "guided_choice", f.GuidedChoice); err != nil {
		return err
	}
	if err := text("guided_regex", engine.Regexp, f.GuidedRegex); err != nil {
		return err
	}
	if err := text("guided_grammar", engine.GBNF, f.GuidedGrammar); err != nil {
		return err
	}
	if err := text("grammar", engine.GBNF, f.Grammar); err != nil {
		return err
	}
	if f.GuidedSpace != nil && req.Format != nil {
		req.Format.Space = f.GuidedSpace
	}
	return nil
}

// structured reads the field structured_outputs.
func (f *FormatFields) structured(req *engine.Request) *Error {
	const param = "structured_outputs"
	var in struct {
		JSON       jsontext.Value `json:"json"`
		JSONObject *bool          `json:"json_object"`
		Regex      *string        `json:"regex"`
		Choice     jsontext.Value `json:"choice"`
		Grammar    *string        `json:"grammar"`
		Space      *string        `json:"whitespace_pattern"`
		NoSpace    *bool          `json:"disable_any_whitespace"`
		Closed     *bool          `json:"disable_additional_properties"`
		Fallback   *bool          `json:"disable_fallback"` // no effect: there is one engine
	}
	if err := DecodeAt(param, f.StructuredOutputs, &in); err != nil {
		return err
	}
	if err := setSchema(req, param+".json", in.JSON); err != nil {
		return err
	}
	if isTrue(in.JSONObject) {
		if err := SetFormat(req, &engine.Format{Kind: engine.AnyObject, Param: param + ".json_object"}); err != nil {
			return err
		}
	}
	if err := setChoice(req, param+".choice", in.Choice); err != nil {
		return err
	}
	for _, one := range []struct {
		name string
		kind engine.FormatKind
		text *string
	}{{".regex", engine.Regexp, in.Regex}, {".grammar", engine.GBNF, in.Grammar}} {
		if one.text != nil {
			if err := SetFormat(req, &engine.Format{Kind: one.kind, Source: []byte(*one.text), Param: param + one.name}); err != nil {
				return err
			}
		}
	}
	if req.Format == nil {
		return BadRequest(CodeMissing, param, "'%s' needs one of json, json_object, regex, choice and grammar", param)
	}
	if none := ""; isTrue(in.NoSpace) {
		req.Format.Space = &none
	} else if in.Space != nil {
		req.Format.Space = in.Space
	}
	req.Format.Closed = req.Format.Closed || isTrue(in.Closed)
	return nil
}

// setSchema reads a schema, or a string that holds one.
func setSchema(req *engine.Request, param string, raw jsontext.Value) *Error {
	switch {
	case Absent(raw):
		return nil
	case raw.Kind() == '"':
		var text string
		if err := DecodeAt(param, raw, &text); err != nil {
			return err
		}
		raw = jsontext.Value(text)
	case raw.Kind() != '{' && raw.Kind() != 't' && raw.Kind() != 'f':
		return BadRequest(CodeInvalidType, param, "'%s' must be a JSON schema", param)
	}
	return SetFormat(req, &engine.Format{Kind: engine.JSONSchema, Source: raw, Param: param})
}

func setChoice(req *engine.Request, param string, raw jsontext.Value) *Error {
	if Absent(raw) {
		return nil
	}
	f := &engine.Format{Kind: engine.Choice, Param: param}
	size := 0
	_, err := EachRaw(param, raw, maxAnswers, func(param string, raw jsontext.Value) *Error {
		var text string
		if err := DecodeAt(param, raw, &text); err != nil {
			return err
		}
		if size += len(text); size > maxFormat {
			return Invalid(param, "'%s' and those before it are longer than %d bytes", param, maxFormat)
		}
		f.Choices = append(f.Choices, text)
		return nil
	})
	if err == nil && len(f.Choices) == 0 {
		err = Invalid(param, "'%s' must not be empty", param)
	}
	if err != nil {
		return err
	}
	return SetFormat(req, f)
}
