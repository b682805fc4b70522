package server

import (
	"errors"
	"net/http"

	"krater/actors/engine"
	"krater/transport/api"
)

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
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
