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
	door.Mount(srv.Route)
	return srv, door
}
