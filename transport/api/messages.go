package api

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"io"
	"regexp"
)

// Limits of a conversation, checked while reading.
const (
	MaxMessages  = 8192
	MaxParts     = 1024 // content parts of one message
	MaxTools     = 512
	MaxToolCalls = 128 // of one message
)

// message is the shape of one element of "messages". The engine gets the raw JSON, since the order
// of keys decides the prompt's text; this type only checks it. Fields that clients send back from
// an earlier answer (refusal, annotations, audio, function_call) are known so that a replayed
// message is not refused.
type message struct {
	Role             *string        `json:"role"`
	Content          jsontext.Value `json:"content"`
	Name             *string        `json:"name"`
	ToolCalls        jsontext.Value `json:"tool_calls"`
	ToolCallID       *string        `json:"tool_call_id"`
	ReasoningContent *string        `json:"reasoning_content"`
	Reasoning        *string        `json:"reasoning"`
	Refusal          *string        `json:"refusal"`
	Annotations      jsontext.Value `json:"annotations"`
	Audio            jsontext.Value `json:"audio"`
	FunctionCall     jsontext.Value `json:"function_call"`
	Extras           jsontext.Value `json:",embed"`
}

type toolCall struct {
	ID       *string `json:"id"`
	Type     *string `json:"type"`
	Index    *int    `json:"index"`
	Function *struct {
		Name      *string        `json:"name"`
		Arguments jsontext.Value `json:"arguments"`
	} `json:"function"`
}

// CheckMessages validates a conversation's shape: a template would render a malformed one silently
// wrong. param is the array's place in the request.
func CheckMessages(param string, raw jsontext.Value) *Error {
	if Absent(raw) {
		return BadRequest(CodeMissing, param, "'%s' is required", param)
	}
	count, err := EachRaw(param, raw, MaxMessages, checkMessage)
	if err != nil {
		return err
	}
	if count == 0 {
		return Invalid(param, "'%s' must hold at least one message", param)
	}
	return nil
}

func checkMessage(param string, raw jsontext.Value) *Error {
	var m message
	if err := DecodeAt(param, raw, &m); err != nil {
		return err
	}
	if err := checkHints("messages[].", param, m.Extras); err != nil {
		return err
	}
	role := param + ".role"
	if m.Role == nil {
		return BadRequest(CodeMissing, role, "'%s' is required", role)
	}
	switch *m.Role {
	case "system", "developer", "user", "assistant", "tool":
	default:
		return Invalid(role, "'%s' must be system, developer, user, assistant or tool, not '%s'", role, Clip(*m.Role))
	}
	if !Absent(m.Audio) {
		return Unsupported(param+".audio", "'%s.audio' is not supported", param)
	}
	if !Absent(m.FunctionCall) {
		return Unsupported(param+".function_call", "'%s.function_call' is not supported, use tool_calls", param)
	}
	if *m.Role != "assistant" && !Absent(m.ToolCalls) {
		return Invalid(param+".tool_calls", "'%s.tool_calls' is only for the assistant", param)
	}
	calls, err := checkToolCalls(param+".tool_calls", m.ToolCalls)
	if err != nil {
		return err
	}
	if Absent(m.Content) {
		if *m.Role == "assistant" && (calls > 0 || m.Refusal != nil) {
			return nil
		}
		return BadRequest(CodeMissing, param+".content", "'%s.content' is required", param)
	}
	return checkContent(param+".content", m.Content)
}

func checkContent(param string, raw jsontext.Value) *Error {
	if raw.Kind() == '"' {
		return nil
	}
	if raw.Kind() != '[' {
		return BadRequest(CodeInvalidType, param, "'%s' must be a string or an array of content parts", param)
	}
	count, err := EachRaw(param, raw, MaxParts, checkPart)
	if err == nil && count == 0 {
		return Invalid(param, "'%s' must not be an empty array", param)
	}
	return err
}

func checkPart(param string, raw jsontext.Value) *Error {
	// The type comes first: an image part has other fields, and the refusal must name the type and
	// not its fields.
	kind, ok := MemberString(raw, "type")
	if !ok {
		return BadRequest(CodeMissing, param+".type", "'%s' must be an object with a string 'type'", param)
	}
	if kind != "text" {
		return Unsupported(param+".type", "content parts of type '%s' are not supported", Clip(kind))
	}
	var part struct {
		Type   string         `json:"type"`
		Text   *string        `json:"text"`
		Extras jsontext.Value `json:",embed"`
	}
	if err := DecodeAt(param, raw, &part); err != nil {
		return err
	}
	if err := CheckPartHints(param, part.Extras); err != nil {
		return err
	}
	if part.Text == nil {
		return BadRequest(CodeMissing, param+".text", "'%s.text' is required", param)
	}
	return nil
}

func checkToolCalls(param string, raw jsontext.Value) (int, *Error) {
	if Absent(raw) {
		return 0, nil
	}
	return EachRaw(param, raw, MaxToolCalls, func(param string, raw jsontext.Value) *Error {
		var call toolCall
		if err := DecodeAt(param, raw, &call); err != nil {
			return err
		}
		if call.Type != nil && *call.Type != "function" {
			return Invalid(param+".type", "'%s.type' must be function", param)
		}
		if call.Function == nil || call.Function.Name == nil || Absent(call.Function.Arguments) {
			return BadRequest(CodeMissing, param+".function", "'%s.function' needs a name and arguments", param)
		}
		return CheckArguments(param+".function.arguments", call.Function.Arguments)
	})
}

// CheckArguments accepts a JSON object or a string that holds one, also an empty string: the
// renderer makes the object of it that templates need.
func CheckArguments(param string, raw jsontext.Value) *Error {
	switch raw.Kind() {
	case '{':
		return nil
	case '"':
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return BadRequest(CodeInvalidJSON, param, "'%s' is not a valid string", param)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return nil // a call without arguments, as some clients write it
		}
		var object jsontext.Value
		if err := Decode(text, &object); err != nil {
			return Invalid(param, "'%s' does not hold a JSON object: %s", param, err.Message)
		}
		if object.Kind() != '{' {
			return Invalid(param, "'%s' does not hold a JSON object", param)
		}
		return nil
	}
	return BadRequest(CodeInvalidType, param, "'%s' must be a string or an object", param)
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)

// CheckTools validates the shape of a tool list and returns its length; a missing list has length
// 0.
func CheckTools(param string, raw jsontext.Value) (int, *Error) {
	if Absent(raw) {
		return 0, nil
	}
	return EachRaw(param, raw, MaxTools, func(param string, raw jsontext.Value) *Error {
		if kind, ok := MemberString(raw, "type"); !ok || kind != "function" {
			return Unsupported(param+".type", "'%s.type' must be function", param)
		}
		var tool struct {
			Type     string `json:"type"`
			Function *struct {
				Name        *string        `json:"name"`
				Description *string        `json:"description"`
				Parameters  jsontext.Value `json:"parameters"`
				Strict      *bool          `json:"strict"`
			} `json:"function"`
		}
		if err := DecodeAt(param, raw, &tool); err != nil {
			return err
		}
		if tool.Function == nil || tool.Function.Name == nil {
			return BadRequest(CodeMissing, param+".function", "'%s.function' needs a name", param)
		}
		if !toolName.MatchString(*tool.Function.Name) {
			return Invalid(param+".function.name", "'%s.function.name' must be 1 to 128 letters, digits, '_' or '-'", param)
		}
		if p := tool.Function.Parameters; !Absent(p) && p.Kind() != '{' {
			return BadRequest(CodeInvalidType, param+".function.parameters", "'%s.function.parameters' must be an object", param)
		}
		return nil
	})
}

// EachRaw calls check with every element of a raw array, one at a time, so that a long list costs no
// more memory than its text, and returns their number. check must not keep its argument. param is the
// place of the array.
func EachRaw(param string, raw jsontext.Value, limit int, check func(string, jsontext.Value) *Error) (int, *Error) {
	if raw.Kind() != '[' {
		return 0, BadRequest(CodeInvalidType, param, "'%s' must be an array", param)
	}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := d.ReadToken(); err != nil {
		return 0, BadRequest(CodeInvalidJSON, param, "'%s' is not valid JSON", param)
	}
	count := 0
	for d.PeekKind() != ']' {
		if count == limit {
			return 0, Invalid(param, "'%s' has more than %d elements", param, limit)
		}
		value, err := d.ReadValue()
		if err != nil {
			return 0, BadRequest(CodeInvalidJSON, param, "'%s' is not valid JSON", param)
		}
		if err := check(fmt.Sprintf("%s[%d]", param, count), value); err != nil {
			return 0, err
		}
		count++
	}
	return count, nil
}

// MemberString finds a string member of a raw object.
func MemberString(raw jsontext.Value, name string) (string, bool) {
	if raw.Kind() != '{' {
		return "", false
	}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := d.ReadToken(); err != nil {
		return "", false
	}
	for d.PeekKind() == '"' {
		key, err := d.ReadToken()
		if err != nil || err == io.EOF {
			return "", false
		}
		if key.String() != name {
			if d.SkipValue() != nil {
				return "", false
			}
			continue
		}
		if d.PeekKind() != '"' {
			return "", false
		}
		value, err := d.ReadToken()
		return value.String(), err == nil
	}
	return "", false
}
