package responses

import (
	"encoding/json/jsontext"

	"krater/actors/engine"
	"krater/transport/api"
)

// The values of a response's status.
const (
	statusQueued     = "queued"
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

// The values of incomplete_details.reason.
const (
	reasonMaxTokens = "max_output_tokens"
	reasonCancelled = "cancelled"
)

// Object is a response as clients see it. It has every field that the official clients' types
// require, even those without meaning here.
type Object struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`     // always "response"
	CreatedAt         int64              `json:"created_at"` // Unix seconds
	Status            string             `json:"status"`
	AccessPrograms    *struct{}          `json:"access_programs"`
	Background        bool               `json:"background"`
	CompletedAt       *int64             `json:"completed_at"` // set with status completed
	Conversation      *ConversationRef   `json:"conversation,omitzero"`
	Error             *ObjectError       `json:"error"` // set with status failed
	IncompleteDetails *IncompleteDetails `json:"incomplete_details"`
	Instructions      *string            `json:"instructions"`
	MaxOutputTokens   *int               `json:"max_output_tokens"`
	MaxToolCalls      *int               `json:"max_tool_calls"`
	Metadata          map[string]string  `json:"metadata"`
	Model             string             `json:"model"`
	Output            []Item             `json:"output"`
	ParallelToolCalls bool               `json:"parallel_tool_calls"`
	PreviousID        *string            `json:"previous_response_id"`
	PromptCacheKey    *string            `json:"prompt_cache_key"`
	Reasoning         Reasoning          `json:"reasoning"`
	SafetyIdentifier  *string            `json:"safety_identifier"`
	ServiceTier       string             `json:"service_tier"`
	Store             bool               `json:"store"`
	Temperature       float64            `json:"temperature"`
	Text              TextConfig         `json:"text"`
	ToolChoice        jsontext.Value     `json:"tool_choice"`
	Tools             jsontext.Value     `json:"tools"`
	TopLogprobs       int                `json:"top_logprobs"`
	TopP              float64            `json:"top_p"`
	Truncation        string             `json:"truncation"`
	Usage             *Usage             `json:"usage"` // null until the answer has ended
	User              *string            `json:"user"`
}

// ConversationRef names the conversation that a response belongs to.
type ConversationRef struct {
	ID string `json:"id"`
}

// ObjectError says why a response failed.
type ObjectError struct {
	Code    string `json:"code"` // server_error, rate_limit_exceeded or invalid_prompt
	Message string `json:"message"`
}

// IncompleteDetails says why a response stopped early.
type IncompleteDetails struct {
	Reason string `json:"reason"`
}

// Reasoning holds the request's options of reasoning.
type Reasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// TextConfig is the format of the answer, as the request has it, or plain text.
type TextConfig struct {
	Format    jsontext.Value `json:"format"`
	Verbosity string         `json:"verbosity"`
}

// Item is an output item of a response: a message, the reasoning, or a function call.
type Item struct {
	ID      string     `json:"id"`
	Type    string     `json:"type"`             // message, reasoning or function_call
	Status  string     `json:"status"`           // in_progress, completed or incomplete
	Role    string     `json:"role,omitempty"`   // of a message: "assistant"
	Summary []struct{} `json:"summary,omitzero"` // of reasoning: always empty
	Content []Part     `json:"content,omitzero"` // of a message and of reasoning
	// Of a function call.
	CallID    string  `json:"call_id,omitempty"`
	Name      string  `json:"name,omitempty"`
	Namespace string  `json:"namespace,omitempty"`
	Arguments *string `json:"arguments,omitzero"`
}

// Part is the text of a message or of reasoning.
type Part struct {
	Type        string             `json:"type"` // output_text or reasoning_text
	Text        string             `json:"text"`
	Annotations []struct{}         `json:"annotations,omitzero"` // of a message: always empty
	Logprobs    []api.TokenLogprob `json:"logprobs,omitzero"`    // of a message
}

// Usage counts tokens.
type Usage struct {
	Input        int           `json:"input_tokens"`
	InputDetail  InputDetails  `json:"input_tokens_details"`
	Output       int           `json:"output_tokens"`
	OutputDetail OutputDetails `json:"output_tokens_details"`
	Total        int           `json:"total_tokens"`
}

// InputDetails says how much of the prompt came from a cache.
type InputDetails struct {
	Cached     int `json:"cached_tokens"`
	CacheWrite int `json:"cache_write_tokens"` // always 0: writing a cache costs nothing here
}

// OutputDetails says how much of the answer was reasoning.
type OutputDetails struct {
	Reasoning int `json:"reasoning_tokens"`
}

func usageOf(u engine.Usage) *Usage {
	return &Usage{
		Input: u.Prompt, InputDetail: InputDetails{Cached: u.Cached},
		Output: u.Completion, OutputDetail: OutputDetails{Reasoning: u.Reasoning},
		Total: u.Prompt + u.Completion,
	}
}

// logprobsOf returns the tokens of an answer that asked for them; never nil, for the clients' types
// want the array.
func logprobsOf(tokens []engine.Token) []api.TokenLogprob {
	if len(tokens) == 0 {
		return []api.TokenLogprob{}
	}
	return api.NewChatLogprobs(tokens).Content
}

// itemKind is the type of an output item.
type itemKind uint8

const (
	messageItem itemKind = iota
	reasoningItem
	callItem
)

var itemPrefixes = [...]string{messageItem: "msg_", reasoningItem: "rs_", callItem: "fc_"}

// item is an output item as a response keeps it: a range of its text and of its tokens.
type item struct {
	kind         itemKind
	id           string
	callID, name string // of a call
	space        string // of a call: the namespace of its function, or ""
	status       string
	from, to     int // bytes of the text
	first, last  int // tokens
}

// part returns the item's text as a content part.
func (i *item) part(text string, tokens []engine.Token) Part {
	if i.kind == reasoningItem {
		return Part{Type: "reasoning_text", Text: text}
	}
	return Part{Type: "output_text", Text: text, Annotations: []struct{}{}, Logprobs: logprobsOf(tokens)}
}

// wire returns the item with its text; parts may be none.
func (i *item) wire(status, text string, parts ...Part) Item {
	out := Item{ID: i.id, Status: status, Content: append([]Part{}, parts...)}
	switch i.kind {
	case messageItem:
		out.Type, out.Role = "message", "assistant"
	case reasoningItem:
		out.Type, out.Summary = "reasoning", []struct{}{}
	case callItem:
		out.Type, out.Content, out.CallID, out.Name, out.Arguments = "function_call", nil, i.callID, i.name, &text
		out.Namespace = i.space
	}
	return out
}

// whole returns the item with all of its text.
func (i *item) whole(status, text string, tokens []engine.Token) Item {
	return i.wire(status, text, i.part(text, tokens))
}
