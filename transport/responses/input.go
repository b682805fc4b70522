package responses

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"

	"krater/transport/api"
)

// maxItems bounds the items of an input and the parts of a message.
const maxItems = 8192

// turn is one message. The engine takes it in the chat shape: its text as a string or, of several
// parts, as text parts, which the chat template's needs decide how to join.
type turn struct {
	role      string
	parts     []string
	reasoning string // of the assistant
	calls     []call // of the assistant
	callID    string // of the role tool: the call that it answers
}

// call is a function call.
type call struct{ id, name, arguments string }

func (t turn) chat() []byte {
	type part struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	m := struct {
		Role       string         `json:"role"`
		Content    any            `json:"content"`
		Reasoning  string         `json:"reasoning_content,omitempty"`
		ToolCalls  []api.ToolCall `json:"tool_calls,omitempty"`
		ToolCallID string         `json:"tool_call_id,omitempty"`
	}{Role: t.role, Reasoning: t.reasoning, ToolCallID: t.callID}
	for _, c := range t.calls {
		m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: c.id, Type: "function", Function: api.FunctionCall{Name: c.name, Arguments: c.arguments}})
	}
	switch {
	case len(t.parts) == 1:
		m.Content = t.parts[0]
	case len(t.parts) > 1:
		parts := make([]part, len(t.parts))
		for i, text := range t.parts {
			parts[i] = part{"text", text}
		}
		m.Content = parts
	case len(t.calls) == 0:
		m.Content = ""
	}
	return api.Marshal(m)
}

// inputItem is a message of the input, in its long and its short form. Ids and states of items that
// come back from an earlier response are ignored.
type inputItem struct {
	Type    *string        `json:"type"`
	Role    *string        `json:"role"`
	Content jsontext.Value `json:"content"`
	ID      *string        `json:"id"`
	Status  *string        `json:"status"`
	Phase   *string        `json:"phase"`
}

// inputPart is one piece of a message.
type inputPart struct {
	Type        *string        `json:"type"`
	Text        *string        `json:"text"`
	Annotations jsontext.Value `json:"annotations"`
	Logprobs    jsontext.Value `json:"logprobs"`
	Extras      jsontext.Value `json:",embed"`
}

// readInput reads a string or a list of message items.
func readInput(raw jsontext.Value) ([]turn, *api.Error) {
	if api.Absent(raw) {
		return nil, nil
	}
	switch raw.Kind() {
	case '"':
		var text string
		err := api.DecodeAt("input", raw, &text)
		return []turn{{role: "user", parts: []string{text}}}, err
	case '[':
	default:
		return nil, api.BadRequest(api.CodeInvalidType, "input", "'input' must be a string or an array of items")
	}
	items, err := elements("input", raw, maxItems)
	if err != nil {
		return nil, err
	}
	var turns []turn
	for i, raw := range items {
		t, err := readItem(fmt.Sprintf("input[%d]", i), raw)
		if err != nil {
			return nil, err
		}
		if n := len(turns); n > 0 && turns[n-1].takes(t) {
			turns[n-1].join(t)
		} else {
			turns = append(turns, t)
		}
	}
	return turns, nil
}

// takes reports whether an item belongs to the turn before it: reasoning, text and calls of one answer
// are items of their own, in this order.
func (t *turn) takes(next turn) bool {
	if t.role != "assistant" || next.role != "assistant" {
		return false
	}
	return len(next.calls) > 0 || len(t.parts) == 0 && len(t.calls) == 0
}

func (t *turn) join(next turn) {
	t.reasoning += next.reasoning
	t.parts = append(t.parts, next.parts...)
	t.calls = append(t.calls, next.calls...)
}

func readItem(param string, raw jsontext.Value) (turn, *api.Error) {
	var head struct {
		Type *string        `json:"type"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := api.DecodeAt(param, raw, &head); err != nil {
		return turn{}, err
	}
	if head.Type != nil && *head.Type != "message" {
		return readOther(param, *head.Type, raw)
	}
	var item inputItem
	if err := api.DecodeAt(param, raw, &item); err != nil {
		return turn{}, err
	}
	if item.Role == nil {
		return turn{}, api.BadRequest(api.CodeMissing, param+".role", "'%s.role' is missing", param)
	}
	switch *item.Role {
	case "user", "assistant", "system", "developer":
	default:
		return turn{}, api.Invalid(param+".role", "'%s.role' must be user, assistant, system or developer", param)
	}
	parts, err := readContent(param+".content", item.Content)
	return turn{role: *item.Role, parts: parts}, err
}

// readContent reads a string or text parts.
func readContent(param string, raw jsontext.Value) ([]string, *api.Error) {
	if api.Absent(raw) {
		return nil, api.BadRequest(api.CodeMissing, param, "'%s' is missing", param)
	}
	switch raw.Kind() {
	case '"':
		var text string
		err := api.DecodeAt(param, raw, &text)
		return []string{text}, err
	case '[':
	default:
		return nil, api.BadRequest(api.CodeInvalidType, param, "'%s' must be a string or an array of parts", param)
	}
	parts, err := elements(param, raw, maxItems)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return nil, api.Invalid(param, "'%s' must not be an empty array", param)
	}
	texts := make([]string, len(parts))
	for i, part := range parts {
		if texts[i], err = readPart(fmt.Sprintf("%s[%d]", param, i), part); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func readPart(param string, raw jsontext.Value) (string, *api.Error) {
	var head struct {
		Type *string        `json:"type"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := api.DecodeAt(param, raw, &head); err != nil {
		return "", err
	}
	if head.Type == nil {
		return "", api.BadRequest(api.CodeMissing, param+".type", "'%s.type' is missing", param)
	}
	if *head.Type != "input_text" && *head.Type != "output_text" {
		return "", api.Unsupported(param+".type", "'%s.type': content parts of type '%s' are not supported, only 'input_text' and 'output_text'", param, api.Clip(*head.Type))
	}
	var part inputPart
	if err := api.DecodeAt(param, raw, &part); err != nil {
		return "", err
	}
	if err := api.CheckPartHints(param, part.Extras); err != nil {
		return "", err
	}
	if part.Text == nil {
		return "", api.BadRequest(api.CodeMissing, param+".text", "'%s.text' is missing", param)
	}
	return *part.Text, nil
}

// elements splits an array that the strict decoder has passed already; an absent one has none.
func elements(param string, raw jsontext.Value, limit int) ([]jsontext.Value, *api.Error) {
	if api.Absent(raw) {
		return nil, nil
	}
	if raw.Kind() != '[' {
		return nil, api.BadRequest(api.CodeInvalidType, param, "'%s' must be an array", param)
	}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := d.ReadToken(); err != nil {
		return nil, api.BadRequest(api.CodeInvalidJSON, param, "'%s' is not valid JSON", param)
	}
	var out []jsontext.Value
	for d.PeekKind() != ']' {
		if len(out) == limit {
			return nil, api.Invalid(param, "'%s' has more than %d elements", param, limit)
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, api.BadRequest(api.CodeInvalidJSON, param, "'%s' is not valid JSON", param)
		}
		out = append(out, value.Clone())
	}
	return out, nil
}

// joinTurns writes messages as JSON objects joined by commas, after past.
func joinTurns(past []byte, turns []turn) []byte {
	out := bytes.Clone(past)
	for _, t := range turns {
		if len(out) > 0 {
			out = append(out, ',')
		}
		out = append(out, t.chat()...)
	}
	return out
}

// continueFrom builds the conversation: instructions (which are never inherited), then the earlier
// messages, then this request's.
func (p *plan) continueFrom(past []byte) {
	p.past = past
	var head []turn
	if p.echo.Instructions != nil && *p.echo.Instructions != "" {
		head = []turn{{role: "system", parts: []string{*p.echo.Instructions}}}
	}
	all := joinTurns(nil, head)
	if len(past) > 0 {
		if len(all) > 0 {
			all = append(all, ',')
		}
		all = append(all, past...)
	}
	all = joinTurns(all, p.turns)
	p.req.Prompt.Chat.Messages = append(append([]byte{'['}, all...), ']')
}

// historyWith returns the conversation that the next request continues: with the answer, if there
// is one, and without the instructions. before is the length of the part before the answer.
func (p *plan) historyWith(answer turn, answered bool) (history []byte, before int) {
	turns := p.turns
	switch last := len(turns) - 1; {
	case !answered:
	case p.continues && last >= 0:
		t := &turns[last]
		if n := len(t.parts); n > 0 && len(answer.parts) > 0 {
			t.parts[n-1] += answer.parts[0]
		} else {
			t.parts = append(t.parts, answer.parts...)
		}
		t.calls = append(t.calls, answer.calls...)
	default:
		history = joinTurns(p.past, turns)
		return joinTurns(history, []turn{answer}), len(history)
	}
	history = joinTurns(p.past, turns)
	return history, len(history)
}
