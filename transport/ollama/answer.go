package ollama

import (
	"encoding/json/jsontext"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// Line is an answer or, in a stream, a piece of one. Message is of /api/chat, Response and Thinking of
// /api/generate. Done and what follows is of the last line; durations are in nanoseconds.
type Line struct {
	Model      string         `json:"model"`
	CreatedAt  string         `json:"created_at"`
	Message    *Message       `json:"message,omitzero"`
	Response   *string        `json:"response,omitzero"`
	Thinking   string         `json:"thinking,omitempty"`
	Logprobs   []TokenLogprob `json:"logprobs,omitempty"`
	Done       bool           `json:"done"`
	DoneReason string         `json:"done_reason,omitempty"` // stop, length, load
	*Counts
}

// Counts are the measures of an answer.
type Counts struct {
	TotalDuration      int64 `json:"total_duration"`
	LoadDuration       int64 `json:"load_duration"` // until the prompt's first step
	PromptEvalCount    int   `json:"prompt_eval_count"`
	PromptEvalDuration int64 `json:"prompt_eval_duration"`
	EvalCount          int   `json:"eval_count"`
	EvalDuration       int64 `json:"eval_duration"`
}

// Message is an assistant's message.
type Message struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Thinking  string     `json:"thinking,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// ToolCall is a call, always whole.
type ToolCall struct {
	ID       string   `json:"id"`
	Function Function `json:"function"`
}

// Function is the part of a ToolCall about the function.
type Function struct {
	Index     int            `json:"index"`
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments"` // an object
}

// TokenLogprob is a token with its alternatives.
type TokenLogprob = api.TokenLogprob

// Answer turns the events of an engine into lines.
type Answer struct {
	model    string
	chat     bool // of /api/chat
	stream   bool
	now      func() time.Time
	begun    time.Time
	started  time.Time // the prompt's first step
	first    time.Time // the first token
	content  strings.Builder
	thinking strings.Builder
	logprobs []TokenLogprob
	calls    []ToolCall
	made     int    // calls so far
	open     string // the arguments of the last call so far
	isOpen   bool
	finish   *engine.Event
}

// NewAnswer makes an answer by the model, for /api/chat or for /api/generate, that began just now.
func NewAnswer(model string, chat, stream bool, now func() time.Time) *Answer {
	return &Answer{model: model, chat: chat, stream: stream, now: now, begun: now()}
}

// Add adds an event, and returns the lines of a stream that it makes.
func (a *Answer) Add(e *engine.Event) (lines []any) {
	if e.Kind == engine.Started {
		a.started = a.now()
	}
	if e.Kind != engine.Tokens && e.Kind != engine.Done {
		return nil
	}
	if a.first.IsZero() {
		a.first = a.now()
	}
	switch e.Part {
	case engine.ReasoningPart:
		a.thinking.WriteString(e.Text)
	case engine.CallPart:
		a.endCall()
		a.calls = append(a.calls, ToolCall{ID: api.CallID(e), Function: Function{Index: a.made, Name: e.Name}})
		a.made++
		a.isOpen = true
	case engine.ArgumentsPart:
		a.open += e.Text
	default:
		if e.Text != "" {
			a.endCall()
		}
		a.content.WriteString(e.Text)
	}
	if l := api.NewChatLogprobs(e.Tokens); l != nil {
		a.logprobs = append(a.logprobs, l.Content...)
	}
	if e.Kind == engine.Done {
		a.endCall()
		a.finish = e
	}
	if !a.stream {
		return nil
	}
	if l := a.piece(); l != nil {
		lines = append(lines, l)
	}
	if e.Kind == engine.Done {
		lines = append(lines, a.last())
	}
	return lines
}

// endCall completes the last call.
func (a *Answer) endCall() {
	if !a.isOpen {
		return
	}
	last := &a.calls[len(a.calls)-1].Function
	if last.Arguments = jsontext.Value(a.open); last.Arguments.Kind() != '{' || !last.Arguments.IsValid() {
		last.Arguments = jsontext.Value("{}")
	}
	a.open, a.isOpen = "", false
}

// piece returns a line with what came since the last one, nil if that is nothing yet. A call comes
// when it is whole.
func (a *Answer) piece() *Line {
	whole := a.calls
	if a.isOpen {
		whole = whole[:len(whole)-1]
	}
	if a.content.Len() == 0 && a.thinking.Len() == 0 && len(whole) == 0 && len(a.logprobs) == 0 {
		return nil
	}
	l := a.line(whole)
	a.calls = a.calls[len(whole):]
	a.content.Reset()
	a.thinking.Reset()
	a.logprobs = nil
	return l
}

// line returns what there is.
func (a *Answer) line(calls []ToolCall) *Line {
	l := &Line{Model: a.model, CreatedAt: a.now().UTC().Format(time.RFC3339Nano), Logprobs: a.logprobs}
	content := a.content.String()
	if a.chat {
		l.Message = &Message{Role: "assistant", Content: content, Thinking: a.thinking.String(), ToolCalls: calls}
	} else {
		l.Response, l.Thinking = &content, a.thinking.String()
	}
	return l
}

// last returns the line that ends an answer.
func (a *Answer) last() *Line {
	l := a.line(a.calls)
	l.Done, l.DoneReason = true, "stop"
	if a.finish.Finish == engine.FinishLength {
		l.DoneReason = "length"
	}
	end := a.now()
	started, first := a.started, a.first
	if started.IsZero() {
		started = a.begun
	}
	l.Counts = &Counts{
		TotalDuration: end.Sub(a.begun).Nanoseconds(), LoadDuration: started.Sub(a.begun).Nanoseconds(),
		PromptEvalCount: a.finish.Usage.Prompt, PromptEvalDuration: first.Sub(started).Nanoseconds(),
		EvalCount: a.finish.Usage.Completion, EvalDuration: end.Sub(first).Nanoseconds(),
	}
	return l
}

// Whole returns the whole answer, after its last event.
func (a *Answer) Whole() *Line { return a.last() }

// Loaded returns the answer to a request that only wants the model loaded.
func Loaded(model string, chat bool, now time.Time) *Line {
	a := Answer{model: model, chat: chat, now: func() time.Time { return now }}
	l := a.line(nil)
	l.Done, l.DoneReason = true, "load"
	return l
}
