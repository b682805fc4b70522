package server

import (
	"errors"
	"net/http"
	"strings"

	"krater/actors/engine"
	"krater/transport/anthropic"
	"krater/transport/api"
	"krater/transport/ollama"
)

// anthropicRoute reports whether a request is of the Anthropic API: by its path, or where another API
// has the same path, by a header that every client of that API sends.
func anthropicRoute(r *http.Request) bool {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	return path == "/messages" || strings.HasPrefix(path, "/messages/") || r.Header.Get("Anthropic-Version") != ""
}

// formOf returns the form of a route's errors; nil: that of the OpenAI API.
func formOf(r *http.Request, id string) func(*api.Error) any {
	switch {
	case anthropicRoute(r):
		return func(e *api.Error) any { return anthropic.NewError(e, id) }
	case strings.HasPrefix(r.URL.Path, "/api/"):
		return func(e *api.Error) any { return ollama.Error{Error: e.Message} }
	}
	return nil
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if anthropicRoute(r) {
		list := anthropic.ModelList{}
		if info := s.engine.Info(); info.ID != "" { // empty while loading
			list = anthropic.ModelList{Data: []anthropic.Model{anthropic.NewModel(info)}, FirstID: &info.ID, LastID: &info.ID}
		}
		api.WriteJSON(w, http.StatusOK, list)
		return
	}
	list := api.ModelList{Object: "list"}
	if info := s.engine.Info(); info.ID != "" { // empty while loading
		list.Data = append(list.Data, api.NewModel(info))
	}
	api.WriteJSON(w, http.StatusOK, list)
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	id, info := r.PathValue("id"), s.engine.Info()
	if err := api.CheckModel(&id, info); err != nil {
		err.Write(w)
		return
	}
	if anthropicRoute(r) {
		api.WriteJSON(w, http.StatusOK, anthropic.NewModel(info))
		return
	}
	api.WriteJSON(w, http.StatusOK, api.NewModel(info))
}

// health answers always: it says that the process lives, not that it is ready. health is well while
// the process can serve, now or later: also while the model loads, and while requests are drained.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.engine.Ready(); err != nil {
		if e, ok := errors.AsType[*engine.Error](err); ok && e.Lasting {
			api.FromEngine(err).Write(w)
			return
		}
	}
	api.WriteJSON(w, http.StatusOK, api.Status{Status: "ok"})
}

// ReadyHandler answers GET /ready, for a door that shows what it says.
func (s *Server) ReadyHandler() http.Handler { return http.HandlerFunc(s.ready) }

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.Ready(); err != nil {
		api.FromEngine(err).Write(w)
		return
	}
	api.WriteJSON(w, http.StatusOK, api.Status{Status: "ready"})
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, http.StatusOK, api.Version{Version: s.opt.Version})
}
