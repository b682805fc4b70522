package chat

import (
	"encoding/json/jsontext"
	"maps"

	"krater/stages/text/chat/template"
)

// RenderLine renders one line of `krater template`: a JSON object whose members are the template's
// variables (messages, tools, add_generation_prompt, bos_token, ...). It returns a JSON string, or
// {"error": words}. The values reach the template unchanged: this is the template alone, as
// transformers runs it, without the checks and the protection of Render.
func (t *Template) RenderLine(line []byte) []byte {
	text, err := t.renderLine(line)
	if err == nil {
		var out []byte
		if out, err = jsontext.AppendQuote(nil, text); err == nil {
			return out
		}
	}
	out, quoteErr := jsontext.AppendQuote([]byte(`{"error": `), err.Error())
	if quoteErr != nil {
		return []byte(`{"error": "the error is not valid UTF-8"}`)
	}
	return append(out, '}')
}

func (t *Template) renderLine(line []byte) (string, error) {
	if len(line) > MaxInput {
		return "", fail("", "the line has %d bytes, the limit is %d", len(line), MaxInput)
	}
	v, err := template.Decode(line)
	if err != nil {
		return "", fail("", "not valid JSON: %v", err)
	}
	if !v.IsDict() {
		return "", fail("", "the line must be a JSON object")
	}
	vars := maps.Clone(t.fixed)
	for _, name := range v.AsDict().Keys {
		if !identifier(name) || template.Reserved(name) {
			return "", fail(name, "%q cannot be a variable of a template", clip(name))
		}
		vars[name] = v.AsDict().Data[name]
	}
	if m, ok := vars["messages"]; !ok || !m.IsList() {
		return "", fail("messages", "'messages' must be an array")
	}
	return t.run(vars, template.Config{Now: t.now})
}
