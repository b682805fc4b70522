package openapi

import (
	"testing"

	"krater/transport/api"
)

type inner struct {
	B []inner `json:"b"`
	C *int    `json:"c"`
}

type outer struct {
	inner
	A     string                  `json:"a"`
	Stop  api.StringList          `json:"stop"`
	Usage api.Nullable[api.Usage] `json:"usage,omitzero"`
	M     map[string]bool         `json:"m,omitempty"`
	Lost  int
}

// TestDocument: paths, parameters, references, required fields, and types that contain themselves.
func TestDocument(t *testing.T) {
	d := Document("1", []Route{{Method: "POST", Path: "/v1/x/{id}", Summary: "x", Request: outer{}, Answer: inner{}, Events: inner{}, Query: []string{"after"}}})
	schemas := d["components"].(map[string]any)["schemas"].(map[string]any)
	if got := string(api.Marshal(schemas["Inner"])); got != `{"properties":{"b":{"items":{"$ref":"#/components/schemas/Inner"},"type":"array"},"c":{"type":"integer"}},"required":["b"],"type":"object"}` {
		t.Error(got)
	}
	if got := string(api.Marshal(schemas["Outer"])); got != `{"properties":{"a":{"type":"string"},"b":{"items":{"$ref":"#/components/schemas/Inner"},"type":"array"},"c":{"type":"integer"},`+
		`"m":{"additionalProperties":{"type":"boolean"},"type":"object"},"stop":{"oneOf":[{"type":"string"},{"items":{"type":"string"},"maxItems":16,"type":"array"}]},"usage":{"$ref":"#/components/schemas/Usage"}},`+
		`"required":["a","b","stop"],"type":"object"}` {
		t.Error(got)
	}
	if schemas["Usage"] == nil || schemas["ErrorAnswer"] == nil {
		t.Errorf("%v", schemas)
	}
	op := d["paths"].(map[string]map[string]any)["/v1/x/{id}"]["post"].(map[string]any)
	if got := string(api.Marshal(op["parameters"])); got != `[{"in":"path","name":"id","required":true,"schema":{"type":"string"}},{"in":"query","name":"after","schema":{"type":"string"}}]` {
		t.Error(got)
	}
}
