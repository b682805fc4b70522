package main

import (
	"net/http"
	"net/http/pprof"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/transport/responses"
	"krater/transport/server"
	"krater/transport/webui"
)

// openProfiles adds the profiles of Go's runtime.
func openProfiles(srv *server.Server) {
	own := map[string]http.HandlerFunc{"cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace}
	srv.Route("GET /debug/pprof/{name...}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := own[r.PathValue("name")]; h != nil {
			h(w, r)
			return
		}
		pprof.Index(w, r) // also serves heap, goroutine and other profiles by name
	}))
}

// openDoors builds the HTTP server, with the Responses API and the trace page. All share keys,
// limits, origins and the drain. sockets bounds the WebSockets for responses; 0 is its default.
func openDoors(e engine.Engine, opt server.Options, sockets int, log zerolog.Logger) (*server.Server, *responses.Door) {
	srv := server.New(e, opt)
	var limits func(string, http.Header)
	if opt.Limits != nil {
		limits = func(owner string, h http.Header) { opt.Limits(owner, false, h) }
	}
	door := responses.New(e, responses.Options{
		Owner: srv.Owner, Peer: srv.Peer, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Work: srv.Work, Acquire: srv.Acquire,
		Limits: limits, Caller: opt.Caller, MaxSockets: sockets, Log: log,
	})
	door.Mount(srv.Route)
	srv.Describe(responses.Routes()...)
	if in, ok := e.(webui.Source); ok {
		webui.New(in, webui.Options{
			Owner: srv.Owner, Peer: srv.Peer, AllowOrigin: srv.OriginAllowed, Draining: srv.Draining(), Ready: srv.ReadyHandler(), Log: log,
		}).Mount(srv.Open, srv.Route)
	}
	return srv, door
}
