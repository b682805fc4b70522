// Package ollama is the wire form of the Ollama API. A request becomes one of the chat or text
// completions API, so that all have the same rules; the events of its answer become lines of JSON.
package ollama

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"

	"krater/actors/engine"
	"krater/transport/api"
)

// common are the fields of both generating routes.
type common struct {
	Model       *string        `json:"model"`
	Stream      *bool          `json:"stream"` // true unless said
	Format      jsontext.Value `json:"format"` // json, or a schema
	Options     jsontext.Value `json:"options"`
	KeepAlive   jsontext.Value `json:"keep_alive"` // no effect: the model stays
	Think       jsontext.Value `json:"think"`      // a boolean or an effort
	Logprobs    *bool          `json:"logprobs"`
	TopLogprobs *int           `json:"top_logprobs"`
	Truncate    *bool          `json:"truncate"` // no effect: a prompt is never cut
	Shift       *bool          `json:"shift"`    // no effect: an answer ends with the context
}

// Streams reports whether the answer is wanted line by line.
func (c *common) Streams() bool { return c.Stream == nil || *c.Stream }

// options are Ollama's names of the sampling fields.
type options struct {
	Temperature      *float64       `json:"temperature"`
	TopP             *float64       `json:"top_p"`
	TopK             *int           `json:"top_k"`
	MinP             *float64       `json:"min_p"`
	RepeatPenalty    *float64       `json:"repeat_penalty"`
	PresencePenalty  *float64       `json:"presence_penalty"`
	FrequencyPenalty *float64       `json:"frequency_penalty"`
	Seed             *int64         `json:"seed"`
	Stop             api.StringList `json:"stop"`
	NumPredict       *int           `json:"num_predict"` // -1 and -2: no limit
	NumCtx           *int           `json:"num_ctx"`     // at most the context there is
	Extras           jsontext.Value `json:",embed"`
}

// sampling returns the options as fields of every route, and the limit of the answer.
func (c *common) sampling(info engine.Info) (s api.Sampling, most *int, err *api.Error) {
	if api.Absent(c.Options) {
		return s, nil, nil
	}
	var o options
	if err := api.DecodeAt("options", c.Options, &o); err != nil {
		return s, nil, err
	}
	if err := api.CheckHints("options", o.Extras); err != nil {
		return s, nil, err
	}
	if o.NumCtx != nil && *o.NumCtx > info.Context {
		return s, nil, api.Invalid("options.num_ctx", "'options.num_ctx' is %d, the server was started with a context of %d", *o.NumCtx, info.Context)
	}
	if o.NumPredict != nil && *o.NumPredict != -1 && *o.NumPredict != -2 {
		most = o.NumPredict
	}
	return api.Sampling{
		Temperature: o.Temperature, TopP: o.TopP, TopK: o.TopK, MinP: o.MinP, RepetitionPenalty: o.RepeatPenalty,
		PresencePenalty: o.PresencePenalty, FrequencyPenalty: o.FrequencyPenalty, Seed: o.Seed, Stop: o.Stop,
	}, most, nil
}

// chat puts the fields into a request of chat completions.
func (c *common) chat(r *api.ChatRequest, info engine.Info) (err *api.Error) {
	if r.Sampling, r.MaxTokens, err = c.sampling(info); err != nil {
		return err
	}
	streams := c.Streams()
	r.Stream, r.Logprobs, r.TopLogprobs = &streams, c.Logprobs, c.TopLogprobs
	if err := c.think(&r.Sampling); err != nil {
		return err
	}
	switch {
	case api.Absent(c.Format) || string(c.Format) == `""`:
	case string(c.Format) == `"json"`:
		r.ResponseFormat = jsontext.Value(`{"type":"json_object"}`)
	case c.Format.Kind() == '{':
		r.ResponseFormat = api.Marshal(map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "format", "schema": c.Format, "strict": true}})
	default:
		return api.Invalid("format", "'format' must be \"json\" or a JSON schema")
	}
	return nil
}

// think reads the field of that name.
func (c *common) think(s *api.Sampling) *api.Error {
	switch {
	case api.Absent(c.Think):
	case c.Think.Kind() == 't' || c.Think.Kind() == 'f':
		on := c.Think.Kind() == 't'
		s.EnableThinking = &on
	case c.Think.Kind() == '"':
		var effort string
		if err := api.DecodeAt("think", c.Think, &effort); err != nil {
			return err
		}
		s.ReasoningEffort = &effort
	default:
		return api.BadRequest(api.CodeInvalidType, "think", "'think' must be a boolean or a string")
	}
	return nil
}

// ChatRequest is the body of POST /api/chat.
type ChatRequest struct {
	common
	Messages jsontext.Value `json:"messages"`
	Tools    jsontext.Value `json:"tools"`
}

// Empty reports whether there is nothing to answer: clients load a model this way.
func (r *ChatRequest) Empty() bool { return api.Absent(r.Messages) || string(r.Messages) == "[]" }

// Plan validates the request. The model is checked by CheckModel before it.
func (r *ChatRequest) Plan(info engine.Info) (*api.Plan, *api.Error) {
	c := &api.ChatRequest{Tools: r.Tools}
	if err := r.chat(c, info); err != nil {
		return nil, err
	}
	var err *api.Error
	if c.Messages, err = conversation(r.Messages); err != nil {
		return nil, err
	}
	plan, err := c.Plan(info)
	return plan, rename(err)
}

// GenerateRequest is the body of POST /api/generate.
type GenerateRequest struct {
	common
	Prompt   *string        `json:"prompt"`
	Suffix   *string        `json:"suffix"`
	System   *string        `json:"system"`
	Template *string        `json:"template"`
	Raw      *bool          `json:"raw"` // the prompt is text for the model, without a template
	Images   jsontext.Value `json:"images"`
	Context  jsontext.Value `json:"context"`
}

// Empty is as for ChatRequest.
func (r *GenerateRequest) Empty() bool {
	return (r.Prompt == nil || *r.Prompt == "") && (r.Suffix == nil || *r.Suffix == "")
}

// Plan validates the request, as for ChatRequest.
func (r *GenerateRequest) Plan(info engine.Info) (*api.Plan, *api.Error) {
	if !api.Absent(r.Images) && string(r.Images) != "[]" {
		return nil, api.Unsupported("images", "'images' are not supported")
	}
	if r.Template != nil && *r.Template != "" {
		return nil, api.Unsupported("template", "'template' is not supported: the model's own is used; 'raw' uses none")
	}
	if !api.Absent(r.Context) && string(r.Context) != "[]" {
		return nil, api.Unsupported("context", "'context' is not supported: send the conversation to /api/chat")
	}
	prompt := ""
	if r.Prompt != nil {
		prompt = *r.Prompt
	}
	if r.Raw != nil && *r.Raw || r.Suffix != nil && *r.Suffix != "" {
		return r.raw(prompt, info)
	}
	c := &api.ChatRequest{}
	if err := r.chat(c, info); err != nil {
		return nil, err
	}
	messages := []turn{{Role: "user", Content: prompt}}
	if r.System != nil && *r.System != "" {
		messages = append([]turn{{Role: "system", Content: *r.System}}, messages...)
	}
	c.Messages = api.Marshal(messages)
	plan, err := c.Plan(info)
	return plan, rename(err)
}

// raw returns a completion of text.
func (r *GenerateRequest) raw(prompt string, info engine.Info) (*api.Plan, *api.Error) {
	s, most, err := r.sampling(info)
	if err != nil {
		return nil, err
	}
	if r.System != nil && *r.System != "" {
		return nil, api.Invalid("system", "'system' needs a template, which 'raw' and 'suffix' do without")
	}
	if !api.Absent(r.Format) && string(r.Format) != `""` {
		return nil, api.Unsupported("format", "'format' is not supported together with 'raw' or 'suffix'")
	}
	streams := r.Streams()
	c := &api.CompletionRequest{Sampling: s, MaxTokens: most, Stream: &streams, Suffix: r.Suffix, Prompt: api.Prompts{Texts: []string{prompt}}}
	if r.Logprobs != nil && *r.Logprobs {
		if c.Logprobs = r.TopLogprobs; c.Logprobs == nil {
			c.Logprobs = new(int)
		}
	}
	plan, err := c.Plan(info)
	return plan, rename(err)
}

// CheckModel is api.CheckModel, but the tag "latest" may follow the name.
func CheckModel(model *string, info engine.Info) *api.Error {
	if model != nil && strings.TrimSuffix(*model, ":latest") == info.ID {
		return nil
	}
	return api.CheckModel(model, info)
}

// optionNames are fields of other routes that are options here.
var optionNames = map[string]string{
	"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty",
	"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "stop": "stop", "max_tokens": "num_predict",
}

// rename gives an error of the OpenAI API the names of this one.
func rename(err *api.Error) *api.Error {
	if err == nil {
		return nil
	}
	name, own := err.Param, ""
	switch option := optionNames[name]; {
	case option != "":
		own = "options." + option
	case name == "response_format":
		own = "format"
	case name == "reasoning_effort":
		own = "think"
	default:
		return err
	}
	e := *err
	e.Param, e.Message = own, strings.ReplaceAll(err.Message, "'"+name+"'", "'"+own+"'")
	return &e
}

// turn is a message of chat completions.
type turn struct {
	Role      string         `json:"role"`
	Content   string         `json:"content"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	ToolCalls []api.ToolCall `json:"tool_calls,omitempty"`
	CallID    string         `json:"tool_call_id,omitempty"`
}

// open is a call that has no result yet.
type open struct{ id, name string }

// conversation turns messages into those of chat completions. Results belong to calls by their id, or
// by the name of the tool, or by their order.
func conversation(raw jsontext.Value) (jsontext.Value, *api.Error) {
	out, made := []byte{'['}, 0
	var waiting []open
	_, err := api.EachRaw("messages", raw, api.MaxMessages, func(param string, raw jsontext.Value) *api.Error {
		var m struct {
			Role     *string        `json:"role"`
			Content  *string        `json:"content"`
			Thinking *string        `json:"thinking"`
			Images   jsontext.Value `json:"images"`
			Calls    jsontext.Value `json:"tool_calls"`
			ToolName *string        `json:"tool_name"`
			Name     *string        `json:"name"`
			CallID   *string        `json:"tool_call_id"`
		}
		if err := api.DecodeAt(param, raw, &m); err != nil {
			return err
		}
		if m.Role == nil {
			return api.BadRequest(api.CodeMissing, param+".role", "'%s.role' is required", param)
		}
		if !api.Absent(m.Images) && string(m.Images) != "[]" {
			return api.Unsupported(param+".images", "'%s.images' are not supported", param)
		}
		t := turn{Role: *m.Role}
		if m.Content != nil {
			t.Content = *m.Content
		}
		if m.Thinking != nil && t.Role == "assistant" {
			t.Reasoning = *m.Thinking
		}
		if t.Role == "tool" {
			name := m.ToolName
			if name == nil {
				name = m.Name
			}
			at := find(waiting, m.CallID, name)
			if at < 0 {
				return api.Invalid(param, "'%s' answers no tool call of an earlier message", param)
			}
			t.CallID = waiting[at].id
			waiting = append(waiting[:at], waiting[at+1:]...)
		}
		if !api.Absent(m.Calls) {
			var err *api.Error
			if t.ToolCalls, err = calls(param+".tool_calls", m.Calls, &made); err != nil {
				return err
			}
			for _, c := range t.ToolCalls {
				waiting = append(waiting, open{c.ID, c.Function.Name})
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, api.Marshal(t)...)
		return nil
	})
	return append(out, ']'), err
}

// find returns the index of the call that a result belongs to, -1 if there is none.
func find(waiting []open, id, name *string) int {
	for i, c := range waiting {
		switch {
		case id != nil && *id != "":
			if c.id == *id {
				return i
			}
		case name != nil && *name != "":
			if c.name == *name {
				return i
			}
		default:
			return i
		}
	}
	return -1
}

// calls reads the calls of a message, and numbers those without an id.
func calls(param string, raw jsontext.Value, made *int) (out []api.ToolCall, err *api.Error) {
	_, err = api.EachRaw(param, raw, api.MaxToolCalls, func(param string, raw jsontext.Value) *api.Error {
		var c struct {
			ID       *string `json:"id"`
			Type     *string `json:"type"`
			Function *struct {
				Index       *int           `json:"index"`
				Name        *string        `json:"name"`
				Description *string        `json:"description"`
				Arguments   jsontext.Value `json:"arguments"`
			} `json:"function"`
		}
		if err := api.DecodeAt(param, raw, &c); err != nil {
			return err
		}
		if c.Function == nil || c.Function.Name == nil {
			return api.BadRequest(api.CodeMissing, param+".function", "'%s.function' needs a name", param)
		}
		*made++
		call := api.ToolCall{ID: fmt.Sprintf("call_%d", *made), Type: "function", Function: api.FunctionCall{Name: *c.Function.Name, Arguments: "{}"}}
		if c.ID != nil && *c.ID != "" {
			call.ID = *c.ID
		}
		if !api.Absent(c.Function.Arguments) {
			if c.Function.Arguments.Kind() != '{' {
				return api.BadRequest(api.CodeInvalidType, param+".function.arguments", "'%s.function.arguments' must be an object", param)
			}
			call.Function.Arguments = string(c.Function.Arguments)
		}
		out = append(out, call)
		return nil
	})
	return out, err
}
