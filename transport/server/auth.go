package server

import (
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"krater/transport/api"
	"krater/transport/upgrade"
)

// authorize checks the request's key. The time it takes depends on the number of keys, not on which
// one matches.
func (s *Server) authorize(r *http.Request) *api.Error {
	if _, inside := insider(r); inside || len(s.opt.Keys) == 0 {
		return nil
	}
	key := presentedKey(r)
	message := "the API key is wrong"
	if key == "" {
		message = "an API key is needed: Authorization: Bearer KEY"
	}
	hash, match := HashKey(key), 0
	for i := range s.opt.Keys {
		match |= subtle.ConstantTimeCompare(hash[:], s.opt.Keys[i][:])
	}
	if match == 1 && key != "" {
		return nil
	}
	return &api.Error{
		Status: http.StatusUnauthorized, Type: api.TypeAuthentication, Code: api.CodeInvalidAPIKey, Message: message,
	}
}

// presentedKey returns the key a request shows, of whatever worth.
func presentedKey(r *http.Request) string {
	if key, offered := upgrade.Key(r); offered {
		return key
	}
	if scheme, rest, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(rest)
	}
	return r.Header.Get("X-Api-Key")
}

// Owner identifies the sender of an authorized request: the hash of its key, or "" if no keys are
// required. Doors that store things use it to separate owners.
func (s *Server) Owner(r *http.Request) string {
	if owner, inside := insider(r); inside {
		return owner
	}
	if len(s.opt.Keys) == 0 {
		return ""
	}
	hash := HashKey(presentedKey(r))
	return hex.EncodeToString(hash[:])
}

// OriginAllowed reports whether a page of the request's Origin may open a WebSocket: no Origin (not
// a browser), this server's own, or one of Options.Origins.
func (s *Server) OriginAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || s.originListed(origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

func (s *Server) originListed(origin string) bool {
	return slices.Contains(s.opt.Origins, "*") || slices.Contains(s.opt.Origins, origin)
}

// cors lets listed origins read answers and sends preflight answers. Cookies are never allowed:
// keys travel in headers.
func (s *Server) cors(next http.Handler) http.Handler {
	if len(s.opt.Origins) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if origin == "" || !s.originListed(origin) {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After, X-Queue-Position")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		// Client libraries send their own headers, so the preflight grants whatever it asks for.
		// The key protects the routes.
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" && len(asked) <= 1024 {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		h.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}
