package api

import (
	"encoding/json/jsontext"

	"krater/actors/engine"
)

// Sampling is the block of fields that every generating route takes: OpenAI's and the common
// extensions. Embed it in a request. null is the same as absent.
type Sampling struct {
	Temperature       *float64   `json:"temperature"`        // 0..2, 0 = greedy
	TopP              *float64   `json:"top_p"`              // (0, 1]
	TopK              *int       `json:"top_k"`              // 0 or -1 = off
	MinP              *float64   `json:"min_p"`              // [0, 1]
	RepetitionPenalty *float64   `json:"repetition_penalty"` // 0.01..10
	PresencePenalty   *float64   `json:"presence_penalty"`   // -2..2
	FrequencyPenalty  *float64   `json:"frequency_penalty"`  // -2..2
	LogitBias         LogitBias  `json:"logit_bias"`
	Seed              *int64     `json:"seed"`
	Stop              StringList `json:"stop"`

	MinTokens         *int  `json:"min_tokens"`
	StopTokenIDs      IDs   `json:"stop_token_ids"`
	IncludeStop       *bool `json:"include_stop_str_in_output"`
	IgnoreEOS         *bool `json:"ignore_eos"`
	SkipSpecialTokens *bool `json:"skip_special_tokens"`
	Priority          *int  `json:"priority"` // higher first, -1000..1000
	TemplateFields
	FormatFields
}

// TemplateFields are the fields of the chat template. Raw text ignores them.
type TemplateFields struct {
	AddGenerationPrompt *bool `json:"add_generation_prompt"`
	ContinueFinal       *bool `json:"continue_final_message"`
	// TemplateKwargs is a JSON object kept in the client's order.
	TemplateKwargs jsontext.Value `json:"chat_template_kwargs"`
	// EnableThinking, Thinking ({"type":"enabled"} or "disabled") and ReasoningEffort (none is
	// disabled) set the variables by which templates turn reasoning on and off, and
	// reasoning_effort. Those of TemplateKwargs come first.
	EnableThinking  *bool          `json:"enable_thinking"`
	Thinking        jsontext.Value `json:"thinking"`
	ReasoningEffort *string        `json:"reasoning_effort"`
}

// Apply validates the block and puts it, with the model's defaults where it is silent, into req.
// Prompt fields of a chat go through ApplyChat; MaxTokens is the route's and must be in req
// already, for min_tokens is checked against it.
func (s *Sampling) Apply(req *engine.Request, info engine.Info) *Error {
	out := info.Defaults
	reals := []struct {
		name   string
		value  *float64
		dst    *float64
		lo, hi float64
		above  bool // lo itself is not allowed
		words  string
	}{
		{"temperature", s.Temperature, &out.Temperature, 0, 2, false, "between 0 and 2"},
		{"top_p", s.TopP, &out.TopP, 0, 1, true, "above 0 and at most 1"},
		{"min_p", s.MinP, &out.MinP, 0, 1, false, "between 0 and 1"},
		{"repetition_penalty", s.RepetitionPenalty, &out.RepetitionPenalty, 0.01, 10, false, "between 0.01 and 10"},
		{"presence_penalty", s.PresencePenalty, &out.PresencePenalty, -2, 2, false, "between -2 and 2"},
		{"frequency_penalty", s.FrequencyPenalty, &out.FrequencyPenalty, -2, 2, false, "between -2 and 2"},
	}
	for _, f := range reals {
		if f.value == nil {
			continue
		}
		if v := *f.value; v < f.lo || v > f.hi || (f.above && v == f.lo) {
			return Invalid(f.name, "'%s' must be %s, not %v", f.name, f.words, v)
		}
		*f.dst = *f.value
	}
	if s.TopK != nil {
		if *s.TopK < -1 {
			return Invalid("top_k", "'top_k' must be positive, or 0 or -1 for none, not %d", *s.TopK)
		}
		out.TopK = max(*s.TopK, 0)
	}
	if s.Seed != nil {
		seed := uint64(*s.Seed)
		out.Seed = &seed
	}
	if err := s.bias(&out, info); err != nil {
		return err
	}
	if err := s.stops(req, info); err != nil {
		return err
	}
	req.Sampling = out
	return s.rest(req)
}

func (s *Sampling) bias(out *engine.Sampling, info engine.Info) *Error {
	for id := range s.LogitBias {
		if int(id) >= info.Vocab {
			return Invalid("logit_bias", "'logit_bias' names token %d, the vocabulary has %d", id, info.Vocab)
		}
	}
	if len(s.LogitBias) > 0 {
		out.LogitBias = s.LogitBias
	}
	return nil
}

func (s *Sampling) stops(req *engine.Request, info engine.Info) *Error {
	for _, stop := range s.Stop {
		if stop == "" {
			return Invalid("stop", "'stop' must not hold an empty string")
		}
		if len(stop) > MaxStopBytes {
			return Invalid("stop", "a 'stop' string must not be longer than %d bytes", MaxStopBytes)
		}
	}
	for _, id := range s.StopTokenIDs {
		if int(id) >= info.Vocab {
			return Invalid("stop_token_ids", "'stop_token_ids' names token %d, the vocabulary has %d", id, info.Vocab)
		}
	}
	req.Stop, req.StopIDs = s.Stop, s.StopTokenIDs
	return nil
}

func (s *Sampling) rest(req *engine.Request) *Error {
	if s.MinTokens != nil {
		if *s.MinTokens < 0 {
			return Invalid("min_tokens", "'min_tokens' must not be negative, got %d", *s.MinTokens)
		}
		if req.MaxTokens > 0 && *s.MinTokens > req.MaxTokens {
			return Invalid("min_tokens", "'min_tokens' (%d) is above the most tokens asked for (%d)", *s.MinTokens, req.MaxTokens)
		}
		req.MinTokens = *s.MinTokens
	}
	if s.Priority != nil {
		if *s.Priority < -MaxPriority || *s.Priority > MaxPriority {
			return Invalid("priority", "'priority' must be between %d and %d, not %d", -MaxPriority, MaxPriority, *s.Priority)
		}
		req.Priority = *s.Priority
	}
	req.IncludeStop = isTrue(s.IncludeStop)
	req.IgnoreEOS = isTrue(s.IgnoreEOS)
	req.KeepSpecial = isFalse(s.SkipSpecialTokens)
	return s.format(req)
}

// ApplyChat puts the fields into c.
func (s *TemplateFields) ApplyChat(c *engine.Chat) *Error {
	c.NoGenerationPrompt = isFalse(s.AddGenerationPrompt)
	c.ContinueFinalMessage = isTrue(s.ContinueFinal)
	if c.ContinueFinalMessage {
		if isTrue(s.AddGenerationPrompt) {
			return Invalid("continue_final_message", "'continue_final_message' and 'add_generation_prompt' cannot both be true")
		}
		c.NoGenerationPrompt = true
	}
	if !Absent(s.TemplateKwargs) {
		if s.TemplateKwargs.Kind() != '{' {
			return BadRequest(CodeInvalidType, "chat_template_kwargs", "'chat_template_kwargs' must be an object")
		}
		c.Kwargs = s.TemplateKwargs
	}
	return s.think(c)
}

// MaxTokens checks the limit on the answer's length; a missing one returns 0, "up to the end of the
// context".
func MaxTokens(param string, value *int) (int, *Error) {
	if value == nil {
		return 0, nil
	}
	if *value <= 0 {
		return 0, Invalid(param, "'%s' must be at least 1, not %d; leave it out for no limit", param, *value)
	}
	return *value, nil
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
