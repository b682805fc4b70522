// Package server is the HTTP front door: the mux and its middleware, and the handlers of the chat,
// completion, model, tokenizer and operations routes. Other doors join through Route and share
// keys, limits, log and drain.
package server

import (
	"crypto/sha256"
	"crypto/tls"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
)

// KeyHash is the SHA-256 of an API key; the server never holds the key itself.
type KeyHash [sha256.Size]byte

// HashKey hashes one API key.
func HashKey(key string) KeyHash { return sha256.Sum256([]byte(key)) }

// Options are the server's settings; zero values mean the defaults.
type Options struct {
	// Keys, when any, are asked for on every route but /health and /ready (and /metrics with
	// OpenMetrics): "Authorization: Bearer KEY" or "X-Api-Key: KEY". Without keys both headers are
	// ignored.
	Keys []KeyHash
	// OpenMetrics serves /metrics and /version without a key.
	OpenMetrics bool
	// Origins may call from a browser page of another origin: exact origins (https://example.org)
	// or "*". Empty: no cross-origin access.
	Origins []string
	// Hosts are the names, besides loopback addresses, that a request's Host header may have; "*"
	// or none: any. A server on loopback without keys should set it.
	Hosts []string

	// Limits sets the headers that show what an owner may still use, in the form of the Anthropic API
	// or of the OpenAI API; nil: there are no limits.
	Limits func(owner string, anthropic bool, h http.Header)

	// Caller reads the client's span from the header of a generating request; nil: not needed.
	Caller func(http.Header) engine.Caller

	MaxBody        int64 // bytes of a request body; 8 MiB
	MaxConcurrent  int   // generating requests at once; 256. More get a 429. Each of several peers may have three quarters.
	MaxConnections int   // open at once; 4,096. More are closed at once. Each of several addresses may have three quarters.
	MaxWork        int64 // bytes of requests that are read, rendered and tokenized at once; 32 MiB. More wait. Each of several peers may have three quarters.
	RetryAfter     time.Duration

	HeaderTimeout  time.Duration // to receive a request's header; 10 s
	BodyTimeout    time.Duration // to receive its body; 30 s
	WriteTimeout   time.Duration // of one write to the client, and half of it for a body that no handler reads; 10 s
	IdleTimeout    time.Duration // of a kept connection; 2 min
	Heartbeat      time.Duration // silence before a comment in a stream; 15 s
	RequestTimeout time.Duration // a request's deadline in the engine; 1 h
	// CutTimeout bounds what Shutdown waits for handlers after it cut them; 5 s.
	CutTimeout time.Duration

	TLS     *tls.Config // nil: plain HTTP
	Version string      // what GET /version says
	// Log gets one line a request, never bodies, keys or query strings. The zero value logs
	// nothing.
	Log *zerolog.Logger
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.RetryAfter, time.Second}, {&o.HeaderTimeout, 10 * time.Second}, {&o.BodyTimeout, 30 * time.Second},
		{&o.WriteTimeout, 10 * time.Second}, {&o.IdleTimeout, 2 * time.Minute}, {&o.Heartbeat, 15 * time.Second},
		{&o.RequestTimeout, time.Hour}, {&o.CutTimeout, 5 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 8 << 20
	}
	if o.MaxConcurrent <= 0 {
		o.MaxConcurrent = 256
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = 4096
	}
	if o.MaxWork <= 0 {
		o.MaxWork = 32 << 20
	}
	if o.Caller == nil {
		o.Caller = func(http.Header) engine.Caller { return engine.Caller{} }
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	if o.Log == nil {
		nop := zerolog.Nop()
		o.Log = &nop
	}
	return o
}
