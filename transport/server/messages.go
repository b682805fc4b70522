package server

import (
	"net/http"

	"krater/actors/engine"
	"krater/transport/anthropic"
	"krater/transport/api"
)

// messages is POST /v1/messages, of the Anthropic API.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	var req anthropic.Request
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	s.generate(w, r, &req, info, done, "msg_", func(r *run) (format, error) { return newMessageFormat(r, info.ID), nil })
}

// countTokens is POST /v1/messages/count_tokens.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	var req anthropic.Request
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	defer done()
	prompt, refusal := req.Prompt(info)
	if refusal != nil {
		refusal.Write(w)
		return
	}
	ids, err := s.engine.Tokenize(r.Context(), prompt, api.TokensMost(info))
	if err != nil {
		s.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, anthropic.Count{Input: len(ids)})
}

// messageFormat shapes messages and their events.
type messageFormat struct {
	answer *anthropic.Answer
	events []any // not sent yet
	prompt int   // tokens
}

func newMessageFormat(r *run, model string) *messageFormat {
	f := &messageFormat{prompt: r.streams[0].PromptTokens()}
	var emit func(anthropic.Event)
	if r.plan.Stream {
		emit = func(e anthropic.Event) { f.events = append(f.events, e) }
	}
	f.answer = anthropic.NewAnswer(r.id, model, emit)
	f.answer.Hide = r.plan.HideReasoning
	return f
}

func (f *messageFormat) chunks(it item) []any {
	f.collect(it)
	return f.take()
}

// take returns the events that are to be sent.
func (f *messageFormat) take() []any {
	out := f.events
	f.events = nil
	return out
}

func (f *messageFormat) collect(it item) {
	if it.event.Kind == engine.Tokens || it.event.Kind == engine.Done {
		f.answer.Add(&it.event)
	}
}

// usage is not asked for: every stream has it.
func (f *messageFormat) usage(engine.Usage) any { return nil }

func (f *messageFormat) whole(engine.Usage) any { return f.answer.Message() }

func (f *messageFormat) wire(s *Server, w http.ResponseWriter) wire {
	return &messageWire{api.NewEventWriter(w, s.opt.WriteTimeout), w, f}
}

// messageWire writes events with their names. The silence of a long prefill is broken by pings.
type messageWire struct {
	*api.EventWriter
	w http.ResponseWriter
	f *messageFormat
}

// Data implements wire.
func (m *messageWire) Data(v any) error {
	e := v.(anthropic.Event)
	return m.Event(e.Type, e)
}

// Heartbeat implements wire.
func (m *messageWire) Heartbeat() error {
	m.f.answer.Begin(engine.Usage{Prompt: m.f.prompt})
	m.f.answer.Ping()
	for _, e := range m.f.take() {
		if err := m.Data(e); err != nil {
			return err
		}
	}
	return nil
}

// Fail implements wire.
func (m *messageWire) Fail(e *api.Error) error { return m.Event("error", e.Form(m.w)) }

// Done implements wire: message_stop was the last event.
func (m *messageWire) Done() error { return nil }
