package server

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"krater/transport/api"
)

// Route adds a handler under a ServeMux pattern with a method ("POST /v1/responses"). It requires a
// key. A pattern under /v1/ also matches without that prefix. Other methods of the path get a 405
// with Allow. Patterns with the same path must give its wildcards the same names. The handler's
// context ends with the connection or when Shutdown cuts it, also after a WebSocket upgrade. Route
// panics on a bad pattern, as ServeMux does. Call it before Serve.
func (s *Server) Route(pattern string, h http.Handler) { s.add(pattern, s.guard(h)) }

// Open is Route for what needs no key.
func (s *Server) Open(pattern string, h http.Handler) { s.add(pattern, h) }

// Routed reports whether there is a route of that method for exactly this path.
func (s *Server) Routed(method, path string) bool { return slices.Contains(s.methods[path], method) }

// insideKey marks the context of a request that was made in this process; the value is its owner.
// No request from outside can have it.
type insideKey struct{}

func insider(r *http.Request) (owner string, inside bool) {
	owner, inside = r.Context().Value(insideKey{}).(string)
	return owner, inside
}

// Inside returns the server for requests made in this process on behalf of an owner whose key was
// checked when they were given: the same routes, limits and drain, without keys, origins and host
// names. They are logged at debug level.
func (s *Server) Inside(owner string) http.Handler {
	next := s.recorded(s.mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), insideKey{}, owner)))
	})
}

// Handler returns the whole server as one handler.
func (s *Server) Handler() http.Handler { return s.outer(s.mux) }

func (s *Server) add(pattern string, h http.Handler) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		panic("server: a route needs a method: " + pattern)
	}
	s.addPath(method, path, h)
	if short, ok := strings.CutPrefix(path, "/v1/"); ok {
		s.addPath(method, "/"+short, h)
	}
}

func (s *Server) addPath(method, path string, h http.Handler) {
	s.mux.Handle(method+" "+path, h)
	if s.methods[path] == nil && !s.covered(path) {
		s.mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.refuseUnserved(w, r) {
				s.methodNotAllowed(w, path)
			}
		}))
	}
	s.methods[path] = append(s.methods[path], method)
	if method == http.MethodGet { // ServeMux lets GET handlers answer HEAD
		s.methods[path] = append(s.methods[path], http.MethodHead)
	}
	slices.Sort(s.methods[path])
}

// covered reports whether a path with wildcards that has routes matches this one, too, and so answers
// its other methods.
func (s *Server) covered(path string) bool {
	_, pattern := s.mux.Handler(&http.Request{Method: http.MethodTrace, URL: &url.URL{Path: path}})
	return strings.Contains(pattern, "{")
}

func (s *Server) methodNotAllowed(w http.ResponseWriter, path string) {
	allow := strings.Join(s.methods[path], ", ")
	w.Header().Set("Allow", allow)
	e := &api.Error{
		Status: http.StatusMethodNotAllowed, Type: api.TypeInvalidRequest, Code: "method_not_allowed",
		Message: "this path answers to " + allow,
	}
	e.Write(w)
}

// Limit refuses with 503 while not ready and 429 while MaxConcurrent requests run, before the body
// is read.
func (s *Server) Limit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, err := s.Acquire(s.Peer(r))
		if err != nil {
			err.Write(w)
			return
		}
		defer release()
		h.ServeHTTP(w, r)
	})
}

// guard counts the request, ties its context to Shutdown and asks for the key.
func (s *Server) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.authorize(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			err.Write(w)
			return
		}
		if rec, ok := w.(*recorder); ok && s.opt.Limits != nil {
			owner, anthropic := s.Owner(r), anthropicRoute(r)
			rec.limits = func(h http.Header) { s.opt.Limits(owner, anthropic, h) }
			if r.Header.Get("Upgrade") != "" { // which no WriteHeader answers
				rec.limits(rec.Header())
			}
		}
		s.enter()
		defer s.leave()
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(s.base, func() { cancel(errShutdown) })()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}
