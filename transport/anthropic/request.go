// Package anthropic is the wire form of the Anthropic Messages API. A request becomes one of the
// chat completions API, so that both have the same rules; the events of its answer become a message
// or the events of a stream.
package anthropic

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"

	"krater/actors/engine"
	"krater/transport/api"
)

// Request is the body of POST /v1/messages and, with CountOnly, of /v1/messages/count_tokens. It has
// the fields of every route, too.
type Request struct {
	api.Sampling
	Model         *string        `json:"model"`
	Messages      jsontext.Value `json:"messages"`
	System        jsontext.Value `json:"system"` // a string or text blocks
	MaxTokens     *int           `json:"max_tokens"`
	StopSequences api.StringList `json:"stop_sequences"`
	Stream        *bool          `json:"stream"`
	Tools         jsontext.Value `json:"tools"`
	ToolChoice    jsontext.Value `json:"tool_choice"`
	OutputConfig  jsontext.Value `json:"output_config"` // effort and format
	OutputFormat  jsontext.Value `json:"output_format"` // an older place of the format
	Metadata      jsontext.Value `json:"metadata"`      // an object, its content unread
	ServiceTier   *string        `json:"service_tier"`  // no effect
	Speed         *string        `json:"speed"`         // no effect
	// ContextManagement may ask to keep all reasoning, as Krater does anyway.
	ContextManagement jsontext.Value `json:"context_management"`
	Extras            jsontext.Value `json:",embed"`
}

// Plan validates the request. The model is checked by api.CheckModel before it.
func (r *Request) Plan(info engine.Info) (*api.Plan, *api.Error) {
	if r.MaxTokens == nil {
		return nil, api.BadRequest(api.CodeMissing, "max_tokens", "'max_tokens' is required")
	}
	chat, err := r.chat()
	if err != nil {
		return nil, err
	}
	// The real API takes 0 to fill its prompt cache. So does this one: no token is made.
	promptOnly := *r.MaxTokens == 0
	if !promptOnly {
		chat.MaxTokens = r.MaxTokens
	}
	plan, err := chat.Plan(info)
	if err != nil {
		return nil, rename(err)
	}
	for _, req := range plan.Requests {
		req.PromptOnly = promptOnly
	}
	return plan, r.display(plan)
}

// Prompt validates the request and returns the conversation to count.
func (r *Request) Prompt(info engine.Info) (engine.Prompt, *api.Error) {
	chat, err := r.chat()
	if err != nil {
		return engine.Prompt{}, err
	}
	plan, err := chat.Plan(info)
	if err != nil {
		return engine.Prompt{}, rename(err)
	}
	return plan.Requests[0].Prompt, nil
}

// chat returns the request in the form of chat completions, without max_tokens.
func (r *Request) chat() (*api.ChatRequest, *api.Error) {
	c := &api.ChatRequest{Sampling: r.Sampling, Stream: r.Stream}
	c.Extras, c.Metadata = r.Extras, r.Metadata
	var err *api.Error
	var prefill bool
	if c.Messages, prefill, err = conversation(r.System, r.Messages); err != nil {
		return nil, err
	}
	if prefill && c.ContinueFinal == nil && c.AddGenerationPrompt == nil {
		c.ContinueFinal = &prefill
	}
	if len(r.StopSequences) > 0 {
		if len(r.Stop) > 0 {
			return nil, api.Invalid("stop_sequences", "'stop_sequences' and 'stop' are both given; give one")
		}
		c.Stop = r.StopSequences
	}
	for _, step := range []func(*api.ChatRequest) *api.Error{r.tools, r.choose, r.think, r.output, r.manage} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// think reads the field thinking: enabled, disabled, or adaptive, which is as the model has it.
func (r *Request) think(c *api.ChatRequest) *api.Error {
	if api.Absent(r.Thinking) {
		return nil
	}
	t, err := r.thinking()
	if err != nil {
		return err
	}
	c.Thinking = nil
	switch t.Type {
	case "adaptive":
	case "enabled":
		c.Thinking = jsontext.Value(`{"type":"enabled"}`)
		if t.Budget != nil {
			c.Thinking = fmt.Appendf(nil, `{"type":"enabled","budget_tokens":%d}`, *t.Budget)
		}
	case "disabled":
		c.Thinking = jsontext.Value(`{"type":"disabled"}`)
	default:
		return api.Invalid("thinking.type", "'thinking.type' must be enabled, adaptive or disabled, not '%s'", api.Clip(t.Type))
	}
	return nil
}

// thinking is the field of that name.
type thinking struct {
	Type    string  `json:"type"`
	Budget  *int    `json:"budget_tokens"`
	Display *string `json:"display"`
}

func (r *Request) thinking() (t thinking, err *api.Error) {
	return t, api.DecodeAt("thinking", r.Thinking, &t)
}

// display leaves the reasoning out of the answer if the request says so.
func (r *Request) display(plan *api.Plan) *api.Error {
	if api.Absent(r.Thinking) {
		return nil
	}
	t, err := r.thinking()
	if err != nil || t.Display == nil {
		return err
	}
	switch *t.Display {
	case "summarized":
	case "omitted":
		plan.HideReasoning = true
	default:
		return api.Invalid("thinking.display", "'thinking.display' must be summarized or omitted, not '%s'", api.Clip(*t.Display))
	}
	return nil
}

// output reads effort and format.
func (r *Request) output(c *api.ChatRequest) *api.Error {
	format, at := r.OutputFormat, "output_format"
	if !api.Absent(r.OutputConfig) {
		var o struct {
			Effort *string        `json:"effort"`
			Format jsontext.Value `json:"format"`
		}
		if err := api.DecodeAt("output_config", r.OutputConfig, &o); err != nil {
			return err
		}
		if o.Effort != nil {
			c.ReasoningEffort = o.Effort
		}
		if !api.Absent(o.Format) {
			format, at = o.Format, "output_config.format"
		}
	}
	if api.Absent(format) {
		return nil
	}
	var f struct {
		Type   string         `json:"type"`
		Schema jsontext.Value `json:"schema"`
	}
	if err := api.DecodeAt(at, format, &f); err != nil {
		return err
	}
	if f.Type != "json_schema" || f.Schema.Kind() != '{' {
		return api.Invalid(at, "'%s' must have the type 'json_schema' and a schema", at)
	}
	c.ResponseFormat = api.Marshal(map[string]any{
		"type": "json_schema", "json_schema": map[string]any{"name": "output", "schema": f.Schema, "strict": true},
	})
	return nil
}

// manage accepts the edit that keeps all reasoning; others change the prompt.
func (r *Request) manage(*api.ChatRequest) *api.Error {
	const param = "context_management"
	if api.Absent(r.ContextManagement) {
		return nil
	}
	var m struct {
		Edits jsontext.Value `json:"edits"`
	}
	if err := api.DecodeAt(param, r.ContextManagement, &m); err != nil || api.Absent(m.Edits) {
		return err
	}
	_, err := api.EachRaw(param+".edits", m.Edits, 16, func(at string, raw jsontext.Value) *api.Error {
		var edit struct {
			Type string         `json:"type"`
			Keep jsontext.Value `json:"keep"`
		}
		if err := api.DecodeAt(at, raw, &edit); err != nil {
			return err
		}
		if !strings.HasPrefix(edit.Type, "clear_thinking_") || string(edit.Keep) != `"all"` {
			return api.Unsupported(at, "'%s' is not supported: only a clear_thinking edit with keep 'all' is, which changes nothing", at)
		}
		return nil
	})
	return err
}

// tools turns tools with an input_schema into functions.
func (r *Request) tools(c *api.ChatRequest) *api.Error {
	if api.Absent(r.Tools) {
		return nil
	}
	out := []byte{'['}
	_, err := api.EachRaw("tools", r.Tools, api.MaxTools, func(param string, raw jsontext.Value) *api.Error {
		if kind, ok := api.MemberString(raw, "type"); ok && kind != "custom" {
			return api.Unsupported(param+".type", "'%s.type' must be custom: tools of type '%s' are not supported", param, api.Clip(kind))
		}
		var t struct {
			Type        *string        `json:"type"`
			Name        *string        `json:"name"`
			Description *string        `json:"description"`
			Schema      jsontext.Value `json:"input_schema"`
			Strict      *bool          `json:"strict"`
			// These change no prompt.
			CacheControl jsontext.Value `json:"cache_control"`
			Eager        *bool          `json:"eager_input_streaming"`
			Defer        *bool          `json:"defer_loading"`
			Callers      jsontext.Value `json:"allowed_callers"`
			Examples     jsontext.Value `json:"input_examples"`
		}
		if err := api.DecodeAt(param, raw, &t); err != nil {
			return err
		}
		if t.Name == nil {
			return api.BadRequest(api.CodeMissing, param+".name", "'%s.name' is required", param)
		}
		if t.Schema.Kind() != '{' {
			return api.BadRequest(api.CodeMissing, param+".input_schema", "'%s.input_schema' must be an object", param)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, api.Marshal(function{"function", functionBody{*t.Name, t.Description, t.Schema, t.Strict}})...)
		return nil
	})
	c.Tools = append(out, ']')
	return err
}

// function is a tool of chat completions.
type function struct {
	Type     string       `json:"type"`
	Function functionBody `json:"function"`
}

type functionBody struct {
	Name        string         `json:"name"`
	Description *string        `json:"description,omitzero"`
	Parameters  jsontext.Value `json:"parameters"`
	Strict      *bool          `json:"strict,omitzero"`
}

// choose turns tool_choice into that of chat completions.
func (r *Request) choose(c *api.ChatRequest) *api.Error {
	const param = "tool_choice"
	if api.Absent(r.ToolChoice) {
		return nil
	}
	var choice struct {
		Type    string  `json:"type"`
		Name    *string `json:"name"`
		Disable *bool   `json:"disable_parallel_tool_use"`
	}
	if err := api.DecodeAt(param, r.ToolChoice, &choice); err != nil {
		return err
	}
	if choice.Disable != nil && *choice.Disable {
		parallel := false
		c.ParallelToolCalls = &parallel
	}
	switch choice.Type {
	case "auto", "none":
		c.ToolChoice = fmt.Appendf(nil, "%q", choice.Type)
	case "any":
		c.ToolChoice = jsontext.Value(`"required"`)
	case "tool":
		if choice.Name == nil {
			return api.BadRequest(api.CodeMissing, param+".name", "'tool_choice.name' is required")
		}
		c.ToolChoice = api.Marshal(map[string]any{"type": "function", "function": map[string]string{"name": *choice.Name}})
	default:
		return api.Invalid(param+".type", "'tool_choice.type' must be auto, any, tool or none, not '%s'", api.Clip(choice.Type))
	}
	return nil
}

// names has fields of chat completions, each followed by its name here.
var names = strings.NewReplacer(
	".function.parameters", ".input_schema", ".function", "", "response_format", "output_config.format",
	"reasoning_effort", "output_config.effort", "'stop'", "'stop_sequences'",
)

// rename gives an error of the chat completions API the names of this one.
func rename(err *api.Error) *api.Error {
	e := *err
	e.Param, e.Message = names.Replace(e.Param), names.Replace(e.Message)
	return &e
}
