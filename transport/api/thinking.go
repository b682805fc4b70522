package api

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"slices"

	"krater/actors/engine"
)

// efforts are the values of reasoning_effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// think adds the variables of reasoning to the template's. Templates know the switch by one of three
// names.
func (s *TemplateFields) think(c *engine.Chat) *Error {
	name, on, err := s.thinking()
	if err != nil {
		return err
	}
	given := memberNames(s.TemplateKwargs)
	if name == "enable_thinking" || name == "thinking" {
		if slices.Contains(given, "enable_thinking") {
			return Invalid(name, "'%s' and 'chat_template_kwargs.enable_thinking' are both given; give one", name)
		}
	}
	var kwargs []byte
	add := func(variable, format string, value any) {
		if !slices.Contains(given, variable) {
			kwargs = fmt.Appendf(kwargs, `,%q:`+format, variable, value)
		}
	}
	if on != nil {
		mode := map[bool]string{true: "enabled", false: "disabled"}[*on]
		add("enable_thinking", "%t", *on)
		add("thinking", "%t", *on)
		add("thinking_mode", "%q", mode)
	}
	if s.ReasoningEffort != nil && *s.ReasoningEffort != "none" {
		add("reasoning_effort", "%q", *s.ReasoningEffort)
	}
	if kwargs == nil {
		return nil
	}
	kwargs[0] = '{'
	if len(given) > 0 {
		rest := compact(s.TemplateKwargs)
		c.Kwargs = append(append(kwargs, ','), rest[1:]...)
		return nil
	}
	c.Kwargs = append(kwargs, '}')
	return nil
}

// thinking returns whether the model shall reason, nil if the request does not say, and the field
// that decides it.
func (s *TemplateFields) thinking() (name string, on *bool, err *Error) {
	yes, no := true, false
	if s.ReasoningEffort != nil {
		if !slices.Contains(efforts, *s.ReasoningEffort) {
			return "", nil, Invalid("reasoning_effort", "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max, not '%s'", Clip(*s.ReasoningEffort))
		}
		if name, on = "reasoning_effort", &yes; *s.ReasoningEffort == "none" {
			on = &no
		}
	}
	if s.EnableThinking != nil {
		name, on = "enable_thinking", s.EnableThinking
	}
	if Absent(s.Thinking) {
		return name, on, nil
	}
	var field struct {
		Type   *string `json:"type"`
		Budget *int    `json:"budget_tokens"`
	}
	if err := DecodeAt("thinking", s.Thinking, &field); err != nil {
		return "", nil, err
	}
	switch {
	case field.Budget != nil && *field.Budget < 1:
		return "", nil, Invalid("thinking.budget_tokens", "'thinking.budget_tokens' must be at least 1, not %d", *field.Budget)
	case field.Type == nil:
		return "", nil, BadRequest(CodeMissing, "thinking.type", "'thinking.type' is required")
	case *field.Type == "enabled":
		return "thinking", &yes, nil
	case *field.Type == "disabled":
		return "thinking", &no, nil
	}
	return "", nil, Invalid("thinking.type", "'thinking.type' must be enabled or disabled, not '%s'", Clip(*field.Type))
}

// Budget returns the most tokens of reasoning, 0 if the request does not say. ApplyChat checks it.
func (s *TemplateFields) Budget() int {
	var field struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	}
	if Absent(s.Thinking) || DecodeAt("thinking", s.Thinking, &field) != nil || field.Type != "enabled" {
		return 0
	}
	return field.Budget
}

// memberNames lists the names of an object's members.
func memberNames(raw jsontext.Value) (names []string) {
	if Absent(raw) || raw.Kind() != '{' {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := d.ReadToken(); err != nil {
		return nil
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return names
		}
		names = append(names, token.String())
		if d.SkipValue() != nil {
			return names
		}
	}
	return names
}
