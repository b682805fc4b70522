package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const person = `{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":120},
	"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age","tags"],"additionalProperties":false}`

// formatted is the part of a chat completion that the tests read.
type formatted struct {
	Choices []struct {
		Message struct {
			Content   string
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
}

// TestFormatsOverHTTP: the built-in model's answers follow what a request asks for, greedy or drawn,
// several at a time, beside free ones.
func TestFormatsOverHTTP(t *testing.T) {
	s := open(t)
	ask := func(fields string) formatted {
		return post200[formatted](t, s, "/v1/chat/completions", json.RawMessage(`{"messages":[{"role":"user","content":"Who are you?"}],"seed":3,`+fields+`}`))
	}
	schema := `"response_format":{"type":"json_schema","json_schema":{"name":"p","strict":true,"schema":` + person + `}}`
	for _, fields := range []string{schema, schema + `,"temperature":0`, schema + `,"n":3,"frequency_penalty":0.5`, schema + `,"logprobs":true`} {
		for _, c := range ask(fields).Choices {
			var got struct {
				Name *string  `json:"name"`
				Age  *int     `json:"age"`
				Tags []string `json:"tags"`
			}
			d := json.NewDecoder(strings.NewReader(c.Message.Content))
			d.DisallowUnknownFields()
			if err := d.Decode(&got); err != nil || got.Name == nil || got.Age == nil || *got.Age > 120 || len(got.Tags) > 3 || c.FinishReason != "stop" {
				t.Errorf("%s: %q, %s: %v", fields, c.Message.Content, c.FinishReason, err)
			}
		}
	}
	if c := ask(schema + `,"max_tokens":6`).Choices[0]; c.FinishReason != "length" || json.Valid([]byte(c.Message.Content)) {
		t.Errorf("cut short: %q, %s", c.Message.Content, c.FinishReason)
	}
	if c := ask(`"guided_regex":"[A-Z][a-z]{2,8} (is|was) \\d{4}"`).Choices[0]; !regexp.MustCompile(`^[A-Z][a-z]{2,8} (is|was) \d{4}$`).MatchString(c.Message.Content) {
		t.Errorf("an expression: %q", c.Message.Content)
	}
	if c := ask(`"structured_outputs":{"choice":["yes","no"]}`).Choices[0]; !slices.Contains([]string{"yes", "no"}, c.Message.Content) {
		t.Errorf("a choice: %q", c.Message.Content)
	}
	if c := ask(`"grammar":"root ::= [0-9]{3} \"-\" [a-f]{2,4}"`).Choices[0]; !regexp.MustCompile(`^[0-9]{3}-[a-f]{2,4}$`).MatchString(c.Message.Content) {
		t.Errorf("a grammar: %q", c.Message.Content)
	}
	if c := ask(`"max_tokens":8`).Choices[0]; c.Message.Content == "" {
		t.Error("a free answer is empty")
	}
	status, _, text := s.do("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"guided_json":{"properties":{"a":{"not":{}}}}}`)
	if status != 400 || !strings.Contains(string(text), `/properties/a/not`) || !strings.Contains(string(text), `"guided_json"`) {
		t.Errorf("a schema that is not supported: %d %s", status, text)
	}
	var deep strings.Builder
	deep.WriteString(`root ::= r0`)
	for i := range 1100 { // rules within rules
		fmt.Fprintf(&deep, "\nr%d ::= r%d \"x\"", i, i+1)
	}
	deep.WriteString("\nr1100 ::= \"y\"")
	body, err := json.Marshal(map[string]any{"messages": []any{map[string]string{"role": "user", "content": "x"}}, "grammar": deep.String()})
	if err != nil {
		t.Fatal(err)
	}
	status, _, text = s.do("POST", "/v1/chat/completions", string(body))
	if status != 400 || !strings.Contains(string(text), "token 1 of the answer cannot follow 'grammar'") || !strings.Contains(string(text), `"param":"grammar"`) {
		t.Errorf("a grammar that is too much work: %d %s", status, text)
	}
	if log := s.log.String(); !strings.Contains(log, "token 1 of the answer cannot follow 'grammar'") {
		t.Errorf("the log does not name the grammar:\n%s", log)
	}
}

// TestForcedCalls: a call that is demanded is made, and fits the tool's schema.
func TestForcedCalls(t *testing.T) {
	s := open(t)
	const tools = `"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
		"city":{"type":"string","maxLength":12},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}}},{"type":"function","function":{"name":"now"}}]`
	for choice, names := range map[string][]string{`"required"`: {"weather", "now"}, `{"type":"function","function":{"name":"weather"}}`: {"weather"}} {
		got := post200[formatted](t, s, "/v1/chat/completions", json.RawMessage(`{"messages":[{"role":"user","content":"Hi"}],"seed":5,"parallel_tool_calls":false,`+tools+`,"tool_choice":`+choice+`}`))
		c := got.Choices[0]
		if c.FinishReason != "tool_calls" || len(c.Message.ToolCalls) != 1 || c.Message.Content != "" {
			t.Errorf("%s: %+v", choice, c)
			continue
		}
		call := c.Message.ToolCalls[0].Function
		var args struct {
			City *string
			Days int
		}
		if err := json.Unmarshal([]byte(call.Arguments), &args); err != nil || !slices.Contains(names, call.Name) || call.Name == "weather" && (args.City == nil || args.Days < 1 || args.Days > 9) {
			t.Errorf("%s: %+v: %v", choice, call, err)
		}
	}
}
