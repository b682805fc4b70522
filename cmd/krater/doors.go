package main

import (
	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/transport/responses"
	"krater/transport/server"
)

// openDoors builds the HTTP server with the Responses door mounted: both share
// keys, limits, origins and the drain.
func openDoors(e engine.Engine, opt server.Options, log zerolog.Logger) (*server.Server, *responses.Door) {
	srv := server.New(e, opt)
	door := responses.New(e, responses.Options{
		Owner: srv.Owner, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Acquire: srv.Acquire, Log: log,
	})
	h := door.Handler()
	for _, pattern := range []string{
		"POST /v1/responses", "GET /v1/responses", "GET /v1/responses/{id}", "DELETE /v1/responses/{id}", "POST /v1/responses/{id}/cancel",
	} {
		srv.Route(pattern, h)
	}
	return srv, door
}
