package server

import (
	"net/http"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	var req api.ChatRequest
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	s.generate(w, r, &req, info, done, "chatcmpl-", func(r *run) (format, error) { return newChatFormat(r, info.ID), nil })
}

// chatFormat shapes chat.completion objects and their chunks.
type chatFormat struct {
	eventWire
	run     *run
	model   string
	started []bool    // by choice: the role is sent
	prompt  time.Time // when it began
	answers []chatAnswer
}

// chatAnswer is one choice so far. Of a stream it holds only what later chunks need.
type chatAnswer struct {
	text, reasoning strings.Builder
	arguments       strings.Builder // of the last call
	calls           []api.ToolCall
	count           int // of calls
	tokens          []engine.Token
	finish          engine.FinishReason
}

func newChatFormat(r *run, model string) *chatFormat {
	n := len(r.streams)
	return &chatFormat{run: r, model: model, started: make([]bool, n), answers: make([]chatAnswer, n)}
}

// chunks: a choice begins with its role, and its finish reason is alone in its last chunk.
func (f *chatFormat) chunks(it item) []any {
	switch it.event.Kind {
	case engine.Started:
		f.prompt = time.Now()
	case engine.Progress:
		chunk := f.chunk()
		chunk.PromptProgress = api.NewPromptProgress(&it.event, f.prompt)
		return []any{chunk}
	}
	if it.event.Kind != engine.Tokens && it.event.Kind != engine.Done {
		return nil
	}
	var out []any
	if !f.started[it.choice] {
		f.started[it.choice] = true
		empty := ""
		out = append(out, f.chunk(api.ChatChunkChoice{Index: it.choice, Delta: api.ChatDelta{Role: "assistant", Content: &empty}}))
	}
	if delta, ok := f.delta(it); ok || len(it.event.Tokens) > 0 {
		out = append(out, f.chunk(api.ChatChunkChoice{Index: it.choice, Delta: delta, Logprobs: api.NewChatLogprobs(it.event.Tokens)}))
	}
	if it.event.Kind == engine.Done {
		reason := api.FinishReason(it.event.Finish, f.answers[it.choice].count > 0)
		out = append(out, f.chunk(api.ChatChunkChoice{Index: it.choice, FinishReason: &reason}))
	}
	return out
}

// delta returns the part of the message that an event adds; false if it adds none.
func (f *chatFormat) delta(it item) (api.ChatDelta, bool) {
	a, e := &f.answers[it.choice], &it.event
	switch e.Part {
	case engine.ReasoningPart:
		if f.run.plan.HideReasoning {
			return api.ChatDelta{}, false
		}
		return api.ChatDelta{ReasoningContent: &e.Text}, e.Text != ""
	case engine.CallPart:
		a.count++
		index := a.count - 1
		call := api.ToolCall{Index: &index, ID: api.CallID(e), Type: "function", Function: api.FunctionCall{Name: e.Name}}
		return api.ChatDelta{ToolCalls: []api.ToolCall{call}}, true
	case engine.ArgumentsPart:
		index := a.count - 1
		return api.ChatDelta{ToolCalls: []api.ToolCall{{Index: &index, Function: api.FunctionCall{Arguments: e.Text}}}}, true
	}
	return api.ChatDelta{Content: &e.Text}, e.Text != ""
}

func (f *chatFormat) chunk(choices ...api.ChatChunkChoice) *api.ChatChunk {
	return &api.ChatChunk{
		ID: f.run.id, Object: "chat.completion.chunk", Created: f.run.created, Model: f.model, Choices: choices,
		// With include_usage every chunk has the field, null up to the last unless the client
		// wants it each time.
		Usage: f.run.soFar(),
	}
}

func (f *chatFormat) usage(u engine.Usage) any {
	chunk, usage := f.chunk(), api.NewUsage(u)
	chunk.Usage.Value = &usage
	return chunk
}

func (f *chatFormat) collect(it item) {
	if it.event.Kind == engine.Scored {
		return // the run has them
	}
	a := &f.answers[it.choice]
	switch it.event.Part {
	case engine.ReasoningPart:
		a.reasoning.WriteString(it.event.Text)
	case engine.CallPart:
		a.endCall()
		a.calls = append(a.calls, api.ToolCall{ID: api.CallID(&it.event), Type: "function", Function: api.FunctionCall{Name: it.event.Name}})
	case engine.ArgumentsPart:
		a.arguments.WriteString(it.event.Text)
	default:
		a.text.WriteString(it.event.Text)
	}
	a.tokens = append(a.tokens, it.event.Tokens...)
	a.finish = it.event.Finish
}

// endCall gives the last call its arguments.
func (a *chatAnswer) endCall() {
	if n := len(a.calls); n > 0 {
		a.calls[n-1].Function.Arguments = a.arguments.String()
		a.arguments.Reset()
	}
}

// message returns the whole message.
func (a *chatAnswer) message(hide bool) api.ChatMessage {
	a.endCall()
	m := api.ChatMessage{Role: "assistant", ToolCalls: a.calls}
	if text := a.text.String(); text != "" || len(a.calls) == 0 {
		m.Content = &text
	}
	if !hide {
		m.ReasoningContent = a.reasoning.String()
	}
	return m
}

func (f *chatFormat) whole(u engine.Usage) any {
	out := &api.ChatCompletion{
		ID: f.run.id, Object: "chat.completion", Created: f.run.created, Model: f.model, Usage: api.NewUsage(u),
	}
	if len(f.answers) > 0 {
		out.PromptLogprobs = f.run.prompt(0)
	}
	for i := range f.answers {
		a := &f.answers[i]
		out.Choices = append(out.Choices, api.ChatChoice{
			Index: i, Message: a.message(f.run.plan.HideReasoning),
			Logprobs: api.NewChatLogprobs(a.tokens), FinishReason: api.FinishReason(a.finish, len(a.calls) > 0),
		})
	}
	return out
}
