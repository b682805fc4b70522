package api

import (
	"testing"

	"krater/actors/engine"
)

// TestFormats: each way to ask for a format gives the same request.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		fields, source, param string
		kind                  engine.FormatKind
		closed                bool
	}{
		{`"response_format":{"type":"json_object"}`, ``, "response_format", engine.AnyObject, false},
		{`"response_format":{"type":"json_object","schema":{"type":"null"}}`, `{"type":"null"}`, "response_format.schema", engine.JSONSchema, false},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"z":1,"a":2}}}`, `{"z":1,"a":2}`, "response_format.json_schema.schema", engine.JSONSchema, true},
		{`"guided_json":{"z":1}`, `{"z":1}`, "guided_json", engine.JSONSchema, false},
		{`"guided_json":"{\"z\":1}"`, `{"z":1}`, "guided_json", engine.JSONSchema, false},
		{`"guided_json":null,"guided_regex":"a+"`, `a+`, "guided_regex", engine.Regexp, false},
		{`"guided_grammar":"root ::= \"a\""`, `root ::= "a"`, "guided_grammar", engine.GBNF, false},
		{`"grammar":"root ::= \"a\""`, `root ::= "a"`, "grammar", engine.GBNF, false},
		{`"structured_outputs":{"json":{"z":1},"disable_additional_properties":true}`, `{"z":1}`, "structured_outputs.json", engine.JSONSchema, true},
		{`"structured_outputs":{"json_object":true}`, ``, "structured_outputs.json_object", engine.AnyObject, false},
		{`"structured_outputs":{"regex":"a"}`, `a`, "structured_outputs.regex", engine.Regexp, false},
	} {
		plan, err := planChat(t, "{"+hello+","+c.fields+"}")
		if err != nil {
			t.Errorf("%s: %v", c.fields, err)
			continue
		}
		f := plan.Requests[0].Format
		if f == nil || f.Kind != c.kind || string(f.Source) != c.source || f.Param != c.param || f.Closed != c.closed {
			t.Errorf("%s: %+v", c.fields, f)
		}
	}
	for _, fields := range []string{`"guided_choice":["a","b"]`, `"structured_outputs":{"choice":["a","b"]}`} {
		plan, err := planChat(t, "{"+hello+","+fields+"}")
		if err != nil || plan.Requests[0].Format == nil || len(plan.Requests[0].Format.Choices) != 2 {
			t.Errorf("%s: %v", fields, err)
		}
	}
	for _, fields := range []string{`"response_format":{"type":"text"}`, `"grammar":""`, `"structured_outputs":null`} {
		plan, err := planChat(t, "{"+hello+","+fields+"}")
		if err != nil || plan.Requests[0].Format != nil {
			t.Errorf("%s: %v", fields, err)
		}
	}
}

// TestToolChoices: which tools may be called, and which must be.
func TestToolChoices(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":`
	for choice, want := range map[string]string{
		`"auto"`:     "fg ",
		`"none"`:     " ",
		`"required"`: "fg fg",
		`{"type":"function","function":{"name":"g"}}`:                                                                    "fg g",
		`{"type":"function","name":"g"}`:                                                                                 "fg g",
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}`:                            "f f",
		`{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}`: "f ",
	} {
		plan, err := planChat(t, "{"+hello+","+tools+choice+"}")
		if err != nil {
			t.Errorf("%s: %v", choice, err)
			continue
		}
		got, parts := "", plan.Requests[0].Parts
		var list []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if parts.Tools != nil {
			if err := Lenient(parts.Tools, &list); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range list {
			got += f.Function.Name
		}
		got += " "
		for _, name := range parts.Call {
			got += name
		}
		if got != want {
			t.Errorf("%s: %q, want %q", choice, got, want)
		}
	}
}
