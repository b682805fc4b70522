package chat

import (
	"strings"
	"testing"
)

func TestRenderLine(t *testing.T) {
	c, err := Compile(`{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ extra | tojson }}`, Options{BOS: "<s>"})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		`{"messages":[{"role":"wizard","content":"<b> é\n\u0000"}],"extra":{"z":1,"a":2}}`: `"<s>wizard:<b> é\n\u0000;{\"z\": 1, \"a\": 2}"`,
		`{"messages":[],"extra":null,"bos_token":""}`:                                      `"null"`,
		`{"messages":[]}`:            `{"error": "the model's chat template cannot render this conversation: Object of type Undefined is not JSON serializable"}`,
		`{"messages":{}}`:            `{"error": "'messages' must be an array"}`,
		`{}`:                         `{"error": "'messages' must be an array"}`,
		`[]`:                         `{"error": "the line must be a JSON object"}`,
		``:                           `{"error": "not valid JSON: no value"}`,
		`{"messages":[],"cycler":1}`: `{"error": "\"cycler\" cannot be a variable of a template"}`,
	} {
		if got := string(c.RenderLine([]byte(line))); got != want {
			t.Errorf("%s:\n got %s\nwant %s", line, got, want)
		}
	}
	if got := string(c.RenderLine([]byte(`{"messages":[}`))); !strings.HasPrefix(got, `{"error": "not valid JSON: `) {
		t.Error(got)
	}
}
