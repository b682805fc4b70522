package anthropic

import (
	"encoding/json/jsontext"
	"strings"

	"krater/transport/api"
)

// billingHeader begins a system block in which Claude Code describes itself. It changes with each
// request, so that no prompt would begin like the one before, and it is not meant for the model.
const billingHeader = "x-anthropic-billing-header:"

// maxID bounds the id of a call, in bytes.
const maxID = 256

// turn is a message of chat completions.
type turn struct {
	Role      string         `json:"role"`
	Content   content        `json:"content"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	ToolCalls []api.ToolCall `json:"tool_calls,omitempty"`
	CallID    string         `json:"tool_call_id,omitempty"`
}

// content is a list of text parts.
type content []string

// MarshalJSONTo writes one text as a string, since most templates take that, and several as parts.
func (c content) MarshalJSONTo(e *jsontext.Encoder) error {
	if len(c) == 1 {
		return e.WriteToken(jsontext.String(c[0]))
	}
	if err := e.WriteToken(jsontext.BeginArray); err != nil {
		return err
	}
	for _, text := range c {
		for _, token := range []jsontext.Token{
			jsontext.BeginObject, jsontext.String("type"), jsontext.String("text"),
			jsontext.String("text"), jsontext.String(text), jsontext.EndObject,
		} {
			if err := e.WriteToken(token); err != nil {
				return err
			}
		}
	}
	return e.WriteToken(jsontext.EndArray)
}

// builder collects the turns of a conversation.
type builder struct {
	out   []byte // the finished ones, as JSON
	last  *turn
	calls map[string]bool // ids of the calls so far
	open  string          // the param of the last message, if it makes calls
}

// conversation turns system and messages into the messages of chat completions. prefill says that
// the last one is the beginning of the answer.
func conversation(system, messages jsontext.Value) (out jsontext.Value, prefill bool, err *api.Error) {
	b := &builder{out: []byte{'['}, calls: map[string]bool{}}
	if err := b.system("system", system); err != nil {
		return nil, false, err
	}
	if api.Absent(messages) {
		return nil, false, api.BadRequest(api.CodeMissing, "messages", "'messages' is required")
	}
	count, err := api.EachRaw("messages", messages, api.MaxMessages, b.message)
	switch {
	case err != nil:
		return nil, false, err
	case count == 0:
		return nil, false, api.Invalid("messages", "'messages' must hold at least one message")
	case b.open != "":
		return nil, false, api.Invalid(b.open, "'%s' has a tool_use without a tool_result after it", b.open)
	case b.last == nil:
		return nil, false, api.Invalid("messages", "'messages' must hold a message that is not empty")
	}
	prefill = b.last.Role == "assistant"
	if prefill && len(b.last.Content) == 0 {
		return nil, false, api.Invalid("messages", "the last message must have text: the answer continues it")
	}
	b.end()
	return append(b.out, ']'), prefill, nil
}

// system adds a system prompt.
func (b *builder) system(param string, raw jsontext.Value) *api.Error {
	if api.Absent(raw) {
		return nil
	}
	texts, err := texts(param, raw)
	if err != nil {
		return err
	}
	kept := texts[:0]
	for _, text := range texts {
		if text != "" && !strings.HasPrefix(text, billingHeader) {
			kept = append(kept, text)
		}
	}
	if len(kept) > 0 {
		b.turn("system").Content = append(b.last.Content, kept...)
	}
	return nil
}

// turn returns the last turn, or a new one if that is another role's. Consecutive messages of a role
// are one turn.
func (b *builder) turn(role string) *turn {
	if b.last == nil || b.last.Role != role || role == "tool" {
		b.end()
		b.last = &turn{Role: role}
	}
	return b.last
}

// end writes the last turn.
func (b *builder) end() {
	if b.last == nil {
		return
	}
	if len(b.last.Content) == 0 {
		b.last.Content = content{""}
	}
	if len(b.out) > 1 {
		b.out = append(b.out, ',')
	}
	b.out, b.last = append(b.out, api.Marshal(b.last)...), nil
}

// message adds one message.
func (b *builder) message(param string, raw jsontext.Value) *api.Error {
	var m struct {
		Role    *string        `json:"role"`
		Content jsontext.Value `json:"content"`
	}
	if err := api.DecodeAt(param, raw, &m); err != nil {
		return err
	}
	if m.Role == nil {
		return api.BadRequest(api.CodeMissing, param+".role", "'%s.role' is required", param)
	}
	if api.Absent(m.Content) {
		return api.BadRequest(api.CodeMissing, param+".content", "'%s.content' is required", param)
	}
	at := param + ".content"
	switch *m.Role {
	case "system":
		return b.system(at, m.Content)
	case "user", "assistant":
	default:
		return api.Invalid(param+".role", "'%s.role' must be user, assistant or system, not '%s'", param, api.Clip(*m.Role))
	}
	b.open = ""
	if m.Content.Kind() == '"' {
		var text string
		if err := api.DecodeAt(at, m.Content, &text); err != nil {
			return err
		}
		b.text(*m.Role, text)
		return nil
	}
	read := b.userBlock
	if *m.Role == "assistant" {
		read = b.assistantBlock
	}
	count, err := api.EachRaw(at, m.Content, api.MaxParts, func(at string, raw jsontext.Value) *api.Error {
		kind, ok := api.MemberString(raw, "type")
		if !ok {
			return api.BadRequest(api.CodeMissing, at+".type", "'%s' must be an object with a string 'type'", at)
		}
		return read(at, kind, raw)
	})
	if err == nil && count == 0 {
		b.turn(*m.Role)
	}
	if b.open != "" {
		b.open = param
	}
	return err
}

func (b *builder) text(role, text string) {
	t := b.turn(role)
	t.Content = append(t.Content, text)
}

func (b *builder) userBlock(param, kind string, raw jsontext.Value) *api.Error {
	switch kind {
	case "text":
		text, err := textBlock(param, raw)
		b.text("user", text)
		return err
	case "tool_result":
		return b.result(param, raw)
	case "tool_use", "thinking", "redacted_thinking":
		return api.Invalid(param+".type", "'%s.type': blocks of type '%s' are the assistant's", param, kind)
	}
	return unsupported(param, kind)
}

func (b *builder) assistantBlock(param, kind string, raw jsontext.Value) *api.Error {
	switch kind {
	case "text":
		text, err := textBlock(param, raw)
		b.text("assistant", text)
		return err
	case "tool_use":
		return b.call(param, raw)
	case "thinking":
		var block struct {
			Type      string  `json:"type"`
			Thinking  *string `json:"thinking"`
			Signature *string `json:"signature"`
		}
		if err := api.DecodeAt(param, raw, &block); err != nil {
			return err
		}
		if block.Thinking == nil {
			return api.BadRequest(api.CodeMissing, param+".thinking", "'%s.thinking' is required", param)
		}
		b.turn("assistant").Reasoning += *block.Thinking
		return nil
	case "redacted_thinking": // of another server, which alone can read it
		b.turn("assistant")
		return nil
	case "tool_result":
		return api.Invalid(param+".type", "'%s.type': blocks of type 'tool_result' are the user's", param)
	}
	return unsupported(param, kind)
}

func unsupported(param, kind string) *api.Error {
	return api.Unsupported(param+".type", "'%s.type': blocks of type '%s' are not supported", param, api.Clip(kind))
}

// call adds a tool_use block.
func (b *builder) call(param string, raw jsontext.Value) *api.Error {
	var block struct {
		Type         string         `json:"type"`
		ID           *string        `json:"id"`
		Name         *string        `json:"name"`
		Input        jsontext.Value `json:"input"`
		CacheControl jsontext.Value `json:"cache_control"`
		Caller       jsontext.Value `json:"caller"`
	}
	if err := api.DecodeAt(param, raw, &block); err != nil {
		return err
	}
	id, err := required(param+".id", block.ID)
	if err != nil {
		return err
	}
	name, err := required(param+".name", block.Name)
	if err != nil {
		return err
	}
	if block.Input.Kind() != '{' {
		return api.BadRequest(api.CodeInvalidType, param+".input", "'%s.input' must be an object", param)
	}
	t := b.turn("assistant")
	if len(t.ToolCalls) == api.MaxToolCalls {
		return api.Invalid(param, "'%s' is one of more than %d calls", param, api.MaxToolCalls)
	}
	t.ToolCalls = append(t.ToolCalls, api.ToolCall{
		ID: id, Type: "function", Function: api.FunctionCall{Name: name, Arguments: string(block.Input)},
	})
	b.calls[id], b.open = true, param
	return nil
}

// errorMark begins the result of a call that failed, unless it says so itself.
const errorMark = "Error: "

// result adds a tool_result block as a message of its own.
func (b *builder) result(param string, raw jsontext.Value) *api.Error {
	var block struct {
		Type         string         `json:"type"`
		ID           *string        `json:"tool_use_id"`
		Content      jsontext.Value `json:"content"`
		IsError      *bool          `json:"is_error"`
		CacheControl jsontext.Value `json:"cache_control"`
	}
	if err := api.DecodeAt(param, raw, &block); err != nil {
		return err
	}
	id, err := required(param+".tool_use_id", block.ID)
	if err != nil {
		return err
	}
	if !b.calls[id] {
		return api.Invalid(param+".tool_use_id", "'%s.tool_use_id' is the id of no tool_use before it", param)
	}
	var parts []string
	if !api.Absent(block.Content) {
		if parts, err = texts(param+".content", block.Content); err != nil {
			return err
		}
	}
	if len(parts) == 0 {
		parts = []string{""}
	}
	if block.IsError != nil && *block.IsError && !strings.HasPrefix(parts[0], strings.TrimSpace(errorMark)) {
		parts[0] = errorMark + parts[0]
	}
	t := b.turn("tool")
	t.Content, t.CallID = parts, id
	return nil
}

// required returns a string that must be there.
func required(param string, value *string) (string, *api.Error) {
	switch {
	case value == nil:
		return "", api.BadRequest(api.CodeMissing, param, "'%s' is required", param)
	case *value == "" || len(*value) > maxID:
		return "", api.Invalid(param, "'%s' must have 1 to %d bytes", param, maxID)
	}
	return *value, nil
}

// texts reads a string or an array of text blocks.
func texts(param string, raw jsontext.Value) (out []string, err *api.Error) {
	if raw.Kind() == '"' {
		out = []string{""}
		return out, api.DecodeAt(param, raw, &out[0])
	}
	_, err = api.EachRaw(param, raw, api.MaxParts, func(at string, raw jsontext.Value) *api.Error {
		kind, ok := api.MemberString(raw, "type")
		if !ok {
			return api.BadRequest(api.CodeMissing, at+".type", "'%s' must be an object with a string 'type'", at)
		}
		if kind != "text" {
			return unsupported(at, kind)
		}
		text, err := textBlock(at, raw)
		out = append(out, text)
		return err
	})
	return out, err
}

func textBlock(param string, raw jsontext.Value) (string, *api.Error) {
	var block struct {
		Type         string         `json:"type"`
		Text         *string        `json:"text"`
		CacheControl jsontext.Value `json:"cache_control"`
		Citations    jsontext.Value `json:"citations"`
	}
	if err := api.DecodeAt(param, raw, &block); err != nil {
		return "", err
	}
	if block.Text == nil {
		return "", api.BadRequest(api.CodeMissing, param+".text", "'%s.text' is required", param)
	}
	return *block.Text, nil
}
