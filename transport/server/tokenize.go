package server

import (
	"net/http"

	"krater/transport/api"
)

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req api.TokenizeRequest
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	defer done()
	prompt, refusal := req.Input()
	if refusal != nil {
		refusal.Write(w)
		return
	}
	ids, err := s.engine.Tokenize(r.Context(), prompt, api.TokensMost(info))
	if err != nil {
		s.fail(w, err)
		return
	}
	answer := api.TokenizeAnswer{Count: len(ids), MaxModelLen: info.Context, Tokens: ids}
	if req.ReturnTokenStrs != nil && *req.ReturnTokenStrs {
		answer.TokenStrs = make([]string, len(ids))
		for i := range ids {
			if answer.TokenStrs[i], err = s.engine.Detokenize(ids[i:i+1], false); err != nil {
				s.fail(w, err)
				return
			}
		}
	}
	api.WriteJSON(w, http.StatusOK, answer)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req api.DetokenizeRequest
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	defer done()
	ids, refusal := req.IDs(info)
	if refusal != nil {
		refusal.Write(w)
		return
	}
	if most := api.TokensMost(info); len(ids) > most {
		api.Invalid("tokens", "'tokens' has %d elements, the limit is %d", len(ids), most).Write(w)
		return
	}
	text, err := s.engine.Detokenize(ids, req.Skip())
	if err != nil {
		s.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, api.PromptAnswer{Prompt: text})
}

func (s *Server) applyTemplate(w http.ResponseWriter, r *http.Request) {
	var req api.TemplateRequest
	_, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	defer done()
	chat, refusal := req.Chat()
	if refusal != nil {
		refusal.Write(w)
		return
	}
	text, err := s.engine.Render(r.Context(), chat)
	if err != nil {
		s.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, api.PromptAnswer{Prompt: text})
}

// fail answers with an engine's error and logs what the client is not told.
func (s *Server) fail(w http.ResponseWriter, err error) {
	e := api.FromEngine(err)
	if e.Status == http.StatusInternalServerError {
		s.opt.Log.Error().Err(err).Str("request", w.Header().Get(requestIDHeader)).Msg("engine error")
	}
	e.Write(w)
}
