package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"time"

	"krater/actors/engine"
)

// Nullable is a field that may be left out (not Set), null (Set, nil Value) or present. Tag it
// omitzero.
type Nullable[T any] struct {
	Set   bool
	Value *T
}

// IsZero makes json leave the field out if it is not set.
func (n Nullable[T]) IsZero() bool { return !n.Set }

// MarshalJSONTo writes the value or null.
func (n Nullable[T]) MarshalJSONTo(e *jsontext.Encoder) error { return json.MarshalEncode(e, n.Value) }

// UnmarshalJSONFrom reads the value or null.
func (n *Nullable[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	n.Set = true
	return json.UnmarshalDecode(d, &n.Value)
}

// Usage is the token count of an answer.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// NewUsage returns the wire form of u.
func NewUsage(u engine.Usage) Usage {
	out := Usage{PromptTokens: u.Prompt, CompletionTokens: u.Completion, TotalTokens: u.Prompt + u.Completion}
	out.PromptDetails.CachedTokens = u.Cached
	out.CompletionDetails.ReasoningTokens = u.Reasoning
	return out
}

// FinishReason returns OpenAI's word for r, called if the answer has tool calls. A cancelled answer
// has none, because it ends with an error.
func FinishReason(r engine.FinishReason, called bool) string {
	switch {
	case r == engine.FinishLength:
		return "length"
	case called:
		return "tool_calls"
	}
	return "stop"
}

// ChatCompletion is the answer of POST /v1/chat/completions.
type ChatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"` // chat.completion
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []ChatChoice `json:"choices"`
	Usage   Usage        `json:"usage"`
	// PromptLogprobs is set if the client asked for it.
	PromptLogprobs PromptLogprobs `json:"prompt_logprobs,omitempty"`
}

// ChatChoice is one answer of a ChatCompletion.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      ChatMessage   `json:"message"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
}

// ChatMessage is the assistant's message. Content is null in a message that has tool calls only.
type ChatMessage struct {
	Role             string     `json:"role"`
	Content          *string    `json:"content"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	ToolCalls        []ToolCall `json:"tool_calls,omitempty"`
	Refusal          *string    `json:"refusal"`
}

// ToolCall is a call of a function, or in a stream a piece of one: the first has ID, Type and Name,
// all have the Index, and the Arguments join to a JSON object.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // of streams
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function FunctionCall `json:"function"`
}

// FunctionCall is the part of a ToolCall about the function.
type FunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// CallID returns the id that a client sees of a call: the model's own, if it gave one.
func CallID(e *engine.Event) string {
	if e.CallID != "" {
		return e.CallID
	}
	return NewID("call_")
}

// ChatChunk is one event of a streamed chat answer.
type ChatChunk struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"` // chat.completion.chunk
	Created int64             `json:"created"`
	Model   string            `json:"model"`
	Choices []ChatChunkChoice `json:"choices"`
	Usage   Nullable[Usage]   `json:"usage,omitzero"`
	// PromptProgress is in events of their own, if the client asked for them.
	PromptProgress *PromptProgress `json:"prompt_progress,omitzero"`
}

// PromptProgress says which part of a prompt is computed, as llama.cpp does.
type PromptProgress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`     // tokens from the cache
	Processed int   `json:"processed"` // tokens that are there, cached ones too
	TimeMS    int64 `json:"time_ms"`   // since the prompt began
}

// NewPromptProgress returns the progress of an event of that kind; began is the time of its Started.
func NewPromptProgress(e *engine.Event, began time.Time) *PromptProgress {
	return &PromptProgress{Total: e.Usage.Prompt, Cache: e.Usage.Cached, Processed: e.Position, TimeMS: time.Since(began).Milliseconds()}
}

// ChatChunkChoice is one choice's part of a chunk.
type ChatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        ChatDelta     `json:"delta"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// ChatDelta is the text that a chunk adds to the message.
type ChatDelta struct {
	Role             string     `json:"role,omitzero"`
	Content          *string    `json:"content,omitzero"`
	ReasoningContent *string    `json:"reasoning_content,omitzero"`
	ToolCalls        []ToolCall `json:"tool_calls,omitempty"`
}

// ChatLogprobs are the log-probabilities of a choice or chunk.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
	Refusal *struct{}      `json:"refusal"`
}

// Alternative is one token that could have come.
type Alternative struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// TokenLogprob is the token that came, with its alternatives, best first.
type TokenLogprob struct {
	Alternative
	Top []Alternative `json:"top_logprobs"`
}

// TextCompletion is the answer of POST /v1/completions and, as one event with nullable usage, its
// stream.
type TextCompletion struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"` // text_completion
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []TextChoice    `json:"choices"`
	Usage   Nullable[Usage] `json:"usage,omitzero"`
}

// TextChoice is one answer or a streamed part of one.
type TextChoice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	Logprobs     *TextLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	// PromptLogprobs is set if the client asked for it.
	PromptLogprobs PromptLogprobs `json:"prompt_logprobs,omitempty"`
}

// TextLogprobs is the older form of log-probabilities: one entry a token in each list, null for the
// first of a prompt. TextOffset counts characters from the answer's start.
type TextLogprobs struct {
	Tokens        []string          `json:"tokens"`
	TokenLogprobs []*float32        `json:"token_logprobs"`
	TopLogprobs   []OrNull[float32] `json:"top_logprobs"`
	TextOffset    []int             `json:"text_offset"`
}

// PromptLogprobs has an entry for each token of a prompt: null for the first, and for the others
// the likeliest tokens at this position by id, including the prompt's own (vLLM's form).
type PromptLogprobs []OrNull[PromptLogprob]

// OrNull is a JSON object, null where it is nil.
type OrNull[V any] map[string]V

// MarshalJSONTo implements json.MarshalerTo.
func (m OrNull[V]) MarshalJSONTo(e *jsontext.Encoder) error {
	if m == nil {
		return e.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(e, map[string]V(m))
}

// PromptLogprob is a possible token at a position of a prompt.
type PromptLogprob struct {
	Logprob float32 `json:"logprob"`
	Rank    int     `json:"rank"`
	Token   string  `json:"decoded_token"`
}
