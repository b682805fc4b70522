package server

import (
	"net/http"

	"krater/transport/api"
)

// prefixes says which prefixes of prompts are in the KV cache, for gateways that send a prompt to the replica that has most of it.
func (s *Server) prefixes(w http.ResponseWriter, r *http.Request) {
	list, err := s.engine.Prefixes(r.Context(), s.Owner(r))
	if err != nil {
		s.fail(w, err)
		return
	}
	answer, tag := api.NewPrefixDigest(s.engine.Info(), list)
	w.Header().Set("ETag", `"`+tag+`"`)
	w.Header().Set("Cache-Control", "private, no-cache")
	if r.Header.Get("If-None-Match") == `"`+tag+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	api.WriteJSON(w, http.StatusOK, answer)
}
