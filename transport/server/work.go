package server

import (
	"context"
	"net/http"
	"net/netip"
	"sync"

	"krater/actors/engine"
	"krater/transport/api"
)

// freeWork is the length up to which a request does not count. MaxConcurrent bounds these requests.
const freeWork = 16 << 10

// Peer identifies the client that a limit counts for: the owner of the key if there are several
// keys, or without keys the address (for IPv6 the network of 64 bits). It is "" for a client that
// shares with no one: the only key, or this machine without keys.
func (s *Server) Peer(r *http.Request) string {
	_, inside := insider(r)
	switch {
	case s.Shared():
		return s.Owner(r)
	case len(s.opt.Keys) == 1 || inside:
		return ""
	}
	return addressOf(r.RemoteAddr)
}

// addressOf returns the peer of a remote address: "" on this machine.
func addressOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil || at.Addr().Unmap().IsLoopback() {
		return ""
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, _ := addr.Prefix(64) // 64 is in range
		return network.String()
	}
	return addr.String()
}

// Shared reports whether there are several keys.
func (s *Server) Shared() bool { return len(s.opt.Keys) > 1 }

// Acquire takes a place among the generating requests for a peer, for doors that hold a connection
// over many. The error is the answer for the client; without one release must be called once.
func (s *Server) Acquire(peer string) (release func(), err *api.Error) {
	if err := s.Ready(); err != nil {
		return nil, api.FromEngine(err)
	}
	if ok, alone := s.places.Try(peer, 1); !ok {
		if alone {
			return nil, s.overloaded("too many requests of this key or address are running")
		}
		return nil, s.overloaded("too many requests are running")
	}
	return func() { s.places.Give(peer, 1) }, nil
}

func (s *Server) overloaded(message string) *api.Error {
	return &api.Error{
		Status: http.StatusTooManyRequests, Type: api.TypeRateLimit, Code: api.CodeOverloaded,
		Message: message, RetryAfter: s.opt.RetryAfter,
	}
}

// Work takes bytes of a peer's request into work: they are read, rendered and tokenized, which
// takes several times as much memory. It waits while there are too many, up to BodyTimeout. done
// may be called more than once, and counts the first time.
func (s *Server) Work(ctx context.Context, peer string, bytes int64) (done func(), err *api.Error) {
	if bytes <= freeWork {
		return func() {}, nil
	}
	bytes = min(bytes, s.work.Share(peer))
	ctx, cancel := context.WithTimeout(ctx, s.opt.BodyTimeout)
	defer cancel()
	if s.work.Wait(ctx, peer, bytes) {
		return sync.OnceFunc(func() { s.work.Give(peer, bytes) }), nil
	}
	if ctx.Err() == context.Canceled {
		return nil, api.FromEngine(&engine.Error{Kind: engine.Cancelled, Message: "the request was cancelled before it began"})
	}
	return nil, s.overloaded("too many long requests are being read; try again later")
}
