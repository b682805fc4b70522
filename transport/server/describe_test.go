package server

import (
	"encoding/json/v2"
	"net/http"
	"strings"
	"testing"
)

// TestDescribed: /openapi.json has every route, and no other.
func TestDescribed(t *testing.T) {
	f := start(t, Options{Keys: []KeyHash{HashKey("k")}})
	var doc struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(readAll(t, f.send(t, "GET", "/openapi.json", "").Body)), &doc, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	for path, methods := range f.methods {
		if f.methods["/v1"+path] != nil || path == "/openapi.json" || path == "/docs" {
			continue // a short form, and the description itself
		}
		for _, method := range methods {
			at := strings.ReplaceAll(path, "...}", "}")
			if _, ok := doc.Paths[at][strings.ToLower(method)]; !ok && method != http.MethodHead {
				t.Errorf("%s %s is not described", method, path)
			}
			delete(doc.Paths[at], strings.ToLower(method))
		}
	}
	for path, rest := range doc.Paths {
		if len(rest) > 0 {
			t.Errorf("%s: %v is described, and no route", path, rest)
		}
	}
	if page := readAll(t, f.send(t, "GET", "/docs", "").Body); !strings.Contains(page, "/openapi.json") {
		t.Error(page)
	}
}
