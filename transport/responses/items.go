package responses

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"

	"krater/transport/api"
)

// maxCallID bounds the id of a call, in bytes.
const maxCallID = 256

// readOther reads an item other than a message: a call, its result, or the reasoning of an answer.
func readOther(param, kind string, raw jsontext.Value) (turn, *api.Error) {
	switch kind {
	case "function_call":
		return readCall(param, raw)
	case "function_call_output":
		return readOutput(param, raw)
	case "reasoning":
		return readReasoning(param, raw)
	}
	return turn{}, api.Unsupported(param+".type", "'%s.type': items of type '%s' are not supported, only 'message', 'reasoning', 'function_call' and 'function_call_output'", param, api.Clip(kind))
}

// required returns a string that must be there.
func required(param, field string, value *string, most int) (string, *api.Error) {
	param += "." + field
	switch {
	case value == nil:
		return "", api.BadRequest(api.CodeMissing, param, "'%s' is missing", param)
	case *value == "" || len(*value) > most:
		return "", api.Invalid(param, "'%s' must have 1 to %d bytes", param, most)
	}
	return *value, nil
}

func readCall(param string, raw jsontext.Value) (turn, *api.Error) {
	var item struct {
		Type      string         `json:"type"`
		ID        *string        `json:"id"`
		CallID    *string        `json:"call_id"`
		Name      *string        `json:"name"`
		Namespace *string        `json:"namespace"`
		Arguments jsontext.Value `json:"arguments"`
		Status    *string        `json:"status"`
	}
	if err := api.DecodeAt(param, raw, &item); err != nil {
		return turn{}, err
	}
	id, err := required(param, "call_id", item.CallID, maxCallID)
	if err != nil {
		return turn{}, err
	}
	name, err := required(param, "name", item.Name, maxCallID)
	if err != nil {
		return turn{}, err
	}
	if item.Namespace != nil {
		space, err := required(param, "namespace", item.Namespace, maxCallID)
		if err != nil {
			return turn{}, err
		}
		name = qualified(space, name)
	}
	param += ".arguments"
	if item.Arguments.Kind() != '"' {
		return turn{}, api.BadRequest(api.CodeInvalidType, param, "'%s' must be a string with a JSON object", param)
	}
	if err := api.CheckArguments(param, item.Arguments); err != nil {
		return turn{}, err
	}
	var arguments string
	if err := api.DecodeAt(param, item.Arguments, &arguments); err != nil {
		return turn{}, err
	}
	return turn{role: "assistant", calls: []call{{id, name, arguments}}}, nil
}

func readOutput(param string, raw jsontext.Value) (turn, *api.Error) {
	var item struct {
		Type   string         `json:"type"`
		ID     *string        `json:"id"`
		CallID *string        `json:"call_id"`
		Output jsontext.Value `json:"output"`
		Status *string        `json:"status"`
	}
	if err := api.DecodeAt(param, raw, &item); err != nil {
		return turn{}, err
	}
	id, err := required(param, "call_id", item.CallID, maxCallID)
	if err != nil {
		return turn{}, err
	}
	parts, err := readContent(param+".output", item.Output)
	return turn{role: "tool", callID: id, parts: parts}, err
}

// readReasoning reads the reasoning of an earlier answer. Its summary and what is encrypted are left
// out: the templates ask for the text.
func readReasoning(param string, raw jsontext.Value) (turn, *api.Error) {
	var item struct {
		Type      string         `json:"type"`
		ID        *string        `json:"id"`
		Summary   jsontext.Value `json:"summary"`
		Content   jsontext.Value `json:"content"`
		Encrypted *string        `json:"encrypted_content"`
		Status    *string        `json:"status"`
	}
	if err := api.DecodeAt(param, raw, &item); err != nil {
		return turn{}, err
	}
	param += ".content"
	parts, err := elements(param, item.Content, maxItems)
	if err != nil {
		return turn{}, err
	}
	var text strings.Builder
	for i, raw := range parts {
		var part struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		at := fmt.Sprintf("%s[%d]", param, i)
		if err := api.DecodeAt(at, raw, &part); err != nil {
			return turn{}, err
		}
		if part.Type != "reasoning_text" {
			return turn{}, api.Unsupported(at+".type", "'%s.type' must be reasoning_text", at)
		}
		text.WriteString(part.Text)
	}
	return turn{role: "assistant", reasoning: text.String()}, nil
}
