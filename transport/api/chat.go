package api

import (
	"encoding/json/jsontext"

	"krater/actors/engine"
)

// Limits of a chat request.
const (
	MaxChoices     = 128
	MaxTopLogprobs = 20
)

// Ignored are fields that every route accepts and that never change an answer. Extras holds unknown
// members, which must be in the table of hints.
type Ignored struct {
	User             *string        `json:"user"`
	Metadata         jsontext.Value `json:"metadata"` // an object, its content unread
	ServiceTier      *string        `json:"service_tier"`
	SafetyIdentifier *string        `json:"safety_identifier"`
	PromptCacheKey   *string        `json:"prompt_cache_key"`
	Store            *bool          `json:"store"`
	Extras           jsontext.Value `json:",embed"`
}

func (i *Ignored) check() *Error {
	if !Absent(i.Metadata) && i.Metadata.Kind() != '{' {
		return BadRequest(CodeInvalidType, "metadata", "'metadata' must be an object")
	}
	return CheckHints("", i.Extras)
}

// StreamOptions is OpenAI's field of that name. It has no effect without stream, since the answer
// then has its usage anyway.
type StreamOptions struct {
	IncludeUsage *bool `json:"include_usage"`
	// ContinuousUsage gives every event the usage so far, if IncludeUsage is set.
	ContinuousUsage *bool          `json:"continuous_usage_stats"`
	Extras          jsontext.Value `json:",embed"`
}

// apply checks the options and puts them into the plan.
func (o *StreamOptions) apply(p *Plan) *Error {
	if o == nil {
		return nil
	}
	p.Usage = isTrue(o.IncludeUsage)
	p.Continuous = p.Usage && isTrue(o.ContinuousUsage)
	return CheckHints("stream_options", o.Extras)
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Sampling
	Ignored
	Model               *string        `json:"model"`
	Messages            jsontext.Value `json:"messages"`
	Stream              *bool          `json:"stream"`
	StreamOptions       *StreamOptions `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	N                   *int           `json:"n"`
	Logprobs            *bool          `json:"logprobs"`
	TopLogprobs         *int           `json:"top_logprobs"`
	PromptLogprobs      *int           `json:"prompt_logprobs"`
	Tools               jsontext.Value `json:"tools"`
	ToolChoice          jsontext.Value `json:"tool_choice"`
	ParallelToolCalls   *bool          `json:"parallel_tool_calls"`
	ResponseFormat      jsontext.Value `json:"response_format"`
	// SeparateReasoning false leaves the reasoning in the text, as the model wrote it.
	// IncludeReasoning false leaves it out.
	SeparateReasoning *bool `json:"separate_reasoning"`
	IncludeReasoning  *bool `json:"include_reasoning"`
	// ReturnProgress gives a stream events about the part of the prompt that is computed.
	ReturnProgress *bool `json:"return_progress"`
}

// Plan is a validated request: what to submit and how to answer.
type Plan struct {
	// Requests holds one request a choice, in the order of their index. They share prompts and
	// differ in the seed. IDs are left to the server.
	Requests []*engine.Request
	// Choices is the number of choices per prompt (n). Candidates is the number of requests per
	// prompt; the ones with the highest log-probability per token become its choices.
	Choices, Candidates int
	Stream              bool
	// Usage: a stream ends with a usage chunk. Continuous: every chunk has the usage so far.
	Usage, Continuous bool
	// Echo, for completions, starts each answer with its prompt.
	Echo bool
	// HideReasoning leaves the reasoning out of the answer.
	HideReasoning bool
	// PromptLogprobs returns the prompt's log-probabilities next to the answer, EchoLogprobs before
	// the answer's own.
	PromptLogprobs, EchoLogprobs bool
}

// scorePrompts has one request of each prompt score it. n are the alternatives.
func (p *Plan) scorePrompts(n *int) *Error {
	if n == nil {
		return nil
	}
	switch {
	case *n < 0 || *n > MaxTopLogprobs:
		return Invalid("prompt_logprobs", "'prompt_logprobs' must be between 0 and %d, not %d", MaxTopLogprobs, *n)
	case p.Stream:
		return Unsupported("prompt_logprobs", "'prompt_logprobs' cannot be streamed")
	}
	p.PromptLogprobs = true
	p.score(*n)
	return nil
}

func (p *Plan) score(alternatives int) {
	for i := 0; i < len(p.Requests); i += p.Candidates {
		p.Requests[i].PromptLogprobs = &alternatives
	}
}

// Plan validates the request. The model is checked by CheckModel before it.
func (r *ChatRequest) Plan(info engine.Info) (*Plan, *Error) {
	plan := &Plan{Stream: isTrue(r.Stream), HideReasoning: isFalse(r.IncludeReasoning)}
	var err *Error
	if err = r.StreamOptions.apply(plan); err != nil {
		return nil, err
	}
	if err := r.Ignored.check(); err != nil {
		return nil, err
	}
	format, err := TextFormat("response_format", r.ResponseFormat)
	if err != nil {
		return nil, err
	}
	if err := CheckMessages("messages", r.Messages); err != nil {
		return nil, err
	}
	chat := &engine.Chat{Messages: r.Messages}
	req := &engine.Request{Prompt: engine.Prompt{Chat: chat}, Format: format}
	if err := r.tools(req); err != nil {
		return nil, err
	}
	if err := r.ApplyChat(chat); err != nil {
		return nil, err
	}
	if req.MaxTokens, err = r.maxTokens(); err != nil {
		return nil, err
	}
	if req.Logprobs, err = r.logprobs(); err != nil {
		return nil, err
	}
	if err := r.Apply(req, info); err != nil {
		return nil, err
	}
	if plan.Choices, err = choices("n", r.N, 1); err != nil {
		return nil, err
	}
	plan.Candidates = plan.Choices
	plan.Requests = repeat(req, plan.Choices)
	plan.Requests[0].Progress = plan.Stream && isTrue(r.ReturnProgress)
	return plan, plan.scorePrompts(r.PromptLogprobs)
}

// tools puts the tools into the prompt of a request, and has its answer taken apart.
func (r *ChatRequest) tools(req *engine.Request) *Error {
	count, err := CheckTools("tools", r.Tools)
	if err != nil {
		return err
	}
	choice, err := ReadToolChoice(r.ToolChoice)
	if err != nil {
		return err
	}
	parts := &engine.Parts{Single: isFalse(r.ParallelToolCalls), Budget: r.Budget()}
	if count > 0 {
		req.Prompt.Chat.Tools = r.Tools
	}
	if err := choice.Apply(parts, r.Tools); err != nil {
		return err
	}
	if parts.Tools != nil || !isFalse(r.SeparateReasoning) {
		req.Parts = parts
	} else if parts.Budget > 0 {
		return Invalid("separate_reasoning", "'separate_reasoning' false and 'thinking.budget_tokens' cannot be combined")
	}
	return nil
}

func (r *ChatRequest) maxTokens() (int, *Error) {
	old, err := MaxTokens("max_tokens", r.MaxTokens)
	if err != nil {
		return 0, err
	}
	limit, err := MaxTokens("max_completion_tokens", r.MaxCompletionTokens)
	if err != nil {
		return 0, err
	}
	if old != 0 && limit != 0 && old != limit {
		return 0, Invalid("max_tokens", "'max_tokens' (%d) and 'max_completion_tokens' (%d) differ; give one", old, limit)
	}
	return max(old, limit), nil
}

func (r *ChatRequest) logprobs() (int, *Error) {
	if r.TopLogprobs != nil {
		if *r.TopLogprobs < 0 || *r.TopLogprobs > MaxTopLogprobs {
			return 0, Invalid("top_logprobs", "'top_logprobs' must be between 0 and %d, not %d", MaxTopLogprobs, *r.TopLogprobs)
		}
		if !isTrue(r.Logprobs) && *r.TopLogprobs > 0 {
			return 0, Invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
		}
	}
	switch {
	case !isTrue(r.Logprobs):
		return -1, nil
	case r.TopLogprobs == nil:
		return 0, nil
	}
	return *r.TopLogprobs, nil
}

// choices checks n for a request of that many prompts.
func choices(name string, n *int, prompts int) (int, *Error) {
	if n == nil {
		return 1, nil
	}
	if *n < 1 || *n > MaxChoices {
		return 0, Invalid(name, "'%s' must be between 1 and %d, not %d", name, MaxChoices, *n)
	}
	if *n*prompts > MaxChoices {
		return 0, Invalid(name, "'%s' (%d) times %d prompts is more than %d answers", name, *n, prompts, MaxChoices)
	}
	return *n, nil
}

// repeat makes n requests of one; with a seed each gets its own, counted up, so that the whole
// answer is reproducible.
func repeat(req *engine.Request, n int) []*engine.Request {
	all := make([]*engine.Request, n)
	for i := range all {
		one := *req
		if seed := req.Sampling.Seed; seed != nil {
			own := *seed + uint64(i)
			one.Sampling.Seed = &own
		}
		all[i] = &one
	}
	return all
}

func compact(raw jsontext.Value) jsontext.Value {
	c := raw.Clone()
	_ = c.Compact() // raw was decoded, so it is valid
	return c
}
