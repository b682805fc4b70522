package server

import (
	"net/http"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/ollama"
)

func (s *Server) ollamaRoutes() {
	s.Route("POST /api/chat", s.Limit(http.HandlerFunc(s.ollamaChat)))
	s.Route("POST /api/generate", s.Limit(http.HandlerFunc(s.ollamaGenerate)))
	s.Route("POST /api/show", http.HandlerFunc(s.ollamaShow))
	s.Route("GET /api/tags", answers(func() any { return ollama.Tags(s.engine.Info()) }))
	s.Route("GET /api/ps", answers(func() any { return ollama.Running(s.engine.Info()) }))
	s.Route("GET /api/version", answers(func() any { return ollama.VersionAnswer{Version: ollama.Version} }))
}

// answers returns a handler that sends what f returns.
func answers(f func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { api.WriteJSON(w, http.StatusOK, f()) })
}

// ollamaRequest is a request of either generating route.
type ollamaRequest interface {
	planner
	Empty() bool
}

func (s *Server) ollamaChat(w http.ResponseWriter, r *http.Request) {
	var req ollama.ChatRequest
	s.ollama(w, r, &req, func() *string { return req.Model }, true)
}

func (s *Server) ollamaGenerate(w http.ResponseWriter, r *http.Request) {
	var req ollama.GenerateRequest
	s.ollama(w, r, &req, func() *string { return req.Model }, false)
}

func (s *Server) ollama(w http.ResponseWriter, r *http.Request, req ollamaRequest, model func() *string, chat bool) {
	info, done := s.decodeFor(w, r, req, model, ollama.CheckModel)
	if done == nil {
		return
	}
	if req.Empty() {
		done()
		api.WriteJSON(w, http.StatusOK, ollama.Loaded(info.ID, chat, time.Now()))
		return
	}
	s.generate(w, r, req, info, done, "ollama-", func(r *run) (format, error) {
		return &lineFormat{ollama.NewAnswer(info.ID, chat, r.plan.Stream, time.Now)}, nil
	})
}

func (s *Server) ollamaShow(w http.ResponseWriter, r *http.Request) {
	var req ollama.ShowRequest
	info, done := s.decodeFor(w, r, &req, func() *string {
		if req.Model == nil {
			return req.Name
		}
		return req.Model
	}, ollama.CheckModel)
	if done == nil {
		return
	}
	defer done()
	api.WriteJSON(w, http.StatusOK, ollama.NewShow(info))
}

// lineFormat shapes answers of the Ollama API.
type lineFormat struct{ answer *ollama.Answer }

func (f *lineFormat) chunks(it item) []any { return f.answer.Add(&it.event) }

func (f *lineFormat) collect(it item) { f.answer.Add(&it.event) }

// usage is not asked for: the last line has it.
func (f *lineFormat) usage(engine.Usage) any { return nil }

func (f *lineFormat) whole(engine.Usage) any { return f.answer.Whole() }

func (f *lineFormat) wire(s *Server, w http.ResponseWriter) wire {
	return api.NewLineWriter(w, s.opt.WriteTimeout)
}
