package api

import (
	"encoding/json/jsontext"
	"fmt"
	"os"
	"strings"
	"testing"
)

// eachHint calls f with each field of the table: its place, a JSON value that is accepted and one
// that is not, "" where there is none.
func eachHint(f func(place, name, good, bad string)) {
	for _, h := range hints {
		good, _, _ := strings.Cut(h.values, " or ")
		bad := `"never"`
		switch h.values {
		case "any":
			good, bad = `{"any":["thing"]}`, ""
		case "boolean":
			good = "true"
		case "":
			good = "null"
		}
		for _, name := range strings.Fields(h.names) {
			place := ""
			if i := strings.LastIndexByte(name, '.'); i >= 0 {
				place, name = name[:i+1], name[i+1:]
			}
			f(place, name, good, bad)
		}
	}
}

// TestHints: a hint and a neutral value is accepted on every route, another value is refused by
// name, and a field that is in no table is unknown.
func TestHints(t *testing.T) {
	routes := map[string]func(field string) *Error{
		"chat":       func(field string) *Error { _, err := planChat(t, "{"+hello+","+field+"}"); return err },
		"text":       func(field string) *Error { _, err := planText(t, `{"prompt":"a",`+field+"}"); return err },
		"tokenize":   func(field string) *Error { return input(&TokenizeRequest{}, `{"prompt":"a",`+field+"}") },
		"tokens":     func(field string) *Error { return input(&TokenizeRequest{}, "{"+hello+","+field+"}") },
		"template":   func(field string) *Error { return input(&TemplateRequest{}, "{"+hello+","+field+"}") },
		"detokenize": func(field string) *Error { return input(&DetokenizeRequest{}, `{"tokens":[1],`+field+"}") },
	}
	// Fields that a route has itself.
	own := map[string]string{"chat": " include_reasoning separate_reasoning return_progress ", "text": " prompt best_of echo add_special_tokens parse_special ", "tokenize": " prompt add_special_tokens parse_special ", "tokens": " prompt add_special_tokens parse_special "}
	eachHint(func(place, name, good, bad string) {
		if place != "" {
			return
		}
		for route, try := range routes {
			if strings.Contains(own[route], " "+name+" ") {
				continue
			}
			for _, value := range []string{good, "null"} {
				if err := try(fmt.Sprintf("%q:%s", name, value)); err != nil {
					t.Errorf("%s: %s with %s: %s", route, name, value, err.Message)
				}
			}
			if bad == "" {
				continue
			}
			if err := try(fmt.Sprintf("%q:%s", name, bad)); err == nil || err.Code != CodeUnsupported || err.Param != name || !strings.Contains(err.Message, name) {
				t.Errorf("%s: %s with %s: %+v", route, name, bad, err)
			}
		}
	})
	for route, try := range routes {
		if err := try(`"temprature":1`); err == nil || err.Code != CodeUnknownField || err.Param != "temprature" {
			t.Errorf("%s: %+v", route, err)
		}
	}
}

func input(r any, body string) *Error {
	if err := Decode([]byte(body), r); err != nil {
		return err
	}
	var err *Error
	switch r := r.(type) {
	case *TokenizeRequest:
		_, err = r.Input()
	case *TemplateRequest:
		_, err = r.Chat()
	case *DetokenizeRequest:
		_, err = r.IDs(testInfo)
	}
	return err
}

// TestHintsInside: the hints of messages, parts and stream_options have their own places.
func TestHintsInside(t *testing.T) {
	bodies := map[string]string{
		"stream_options.": `{` + hello + `,"stream":true,"stream_options":{%q:%s}}`,
		"messages[].":     `{"messages":[{"role":"user","content":"a",%q:%s}]}`,
		"content[].":      `{"messages":[{"role":"user","content":[{"type":"text","text":"a",%q:%s}]}]}`,
	}
	seen := map[string]bool{}
	eachHint(func(place, name, good, bad string) {
		if place == "" {
			return
		}
		seen[place] = true
		if place == "options." { // of the Ollama API
			if err := CheckHints("options", fmt.Appendf(nil, "{%q:%s}", name, good)); err != nil {
				t.Errorf("%s%s: %s", place, name, err.Message)
			}
			return
		}
		if _, err := planChat(t, fmt.Sprintf(bodies[place], name, good)); err != nil {
			t.Errorf("%s%s: %s", place, name, err.Message)
		}
		if _, err := planChat(t, `{`+hello+fmt.Sprintf(`,%q:1}`, "x"+name)); err == nil || err.Code != CodeUnknownField {
			t.Errorf("x%s: %+v", name, err)
		}
	})
	for place, body := range bodies {
		_, err := planChat(t, fmt.Sprintf(body, "other", "1"))
		if err == nil || err.Code != CodeUnknownField || !strings.HasSuffix(err.Param, ".other") || !seen[place] {
			t.Errorf("%s: %+v", place, err)
		}
	}
}

func TestHintValues(t *testing.T) {
	for _, c := range []struct {
		values, value string
		want          bool
	}{
		{"1", "1.0", true}, {"1", "1", true}, {"1", "10e-1", true}, {"1", "1.01", false}, {"1", `"1"`, false}, {"0", "-0.0", true},
		{"-1 or 0", "-1", true}, {"-1 or 0", "0", true}, {"-1 or 0", "1", false}, {"[]", "[ ]", true}, {"[]", "[1]", false}, {"[]", "{}", false},
		{`["text"]`, `[ "text" ]`, true}, {`["text"]`, `["audio"]`, false}, {"false", "false", true}, {"false", "true", false}, {"false", "0", false},
		{`""`, `""`, true}, {`""`, `"x"`, false}, {"", "null", true}, {"", "false", false}, {"boolean", "true", true}, {"boolean", "1", false},
		{"any", "[[]]", true},
	} {
		h := hint{values: c.values}
		if got := h.takes(jsontext.Value(c.value)); got != c.want {
			t.Errorf("%q takes %s: %v", c.values, c.value, got)
		}
	}
}

// hintsPage returns the table as the manual has it.
func hintsPage() string {
	var b strings.Builder
	b.WriteString("| field | accepted values | |\n|---|---|---|\n")
	for _, h := range hints {
		values := "`" + strings.ReplaceAll(h.values, " or ", "`, `") + "`"
		switch h.values {
		case "any", "boolean":
			values = h.values
		case "":
			values = "null"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(strings.Fields(h.names), "`, `"), values, h.note)
	}
	return b.String()
}

// TestHintsAreDocumented holds docs/http-api.md and the table together.
func TestHintsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := hintsPage(); !strings.Contains(string(page), want) {
		t.Errorf("docs/http-api.md lacks the table of hints; it is now\n%s", want)
	}
}
