package server

import (
	"net/http"
	"sync"

	"krater/transport/api"
)

// places are those of generating requests. With several keys an owner may hold three times as
// many as are free: one alone gets three quarters, and however many others there are, a few
// are left. So every key's requests come as far as the scheduler, which deals the pipeline out
// among owners.
type places struct {
	most   int
	shared bool // among several keys

	mu    sync.Mutex
	taken int
	held  map[string]int // by owner
}

// newPlaces makes places for a server with that many keys.
func newPlaces(most, keys int) *places {
	return &places{most: most, shared: keys > 1, held: map[string]int{}}
}

// take gives an owner a place, or says why not.
func (p *places) take(owner string) (ok bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.most:
		return false, "too many requests are running"
	case p.shared && p.held[owner] >= 3*(p.most-p.taken):
		return false, "too many requests of this key are running"
	}
	p.taken++
	p.held[owner]++
	return true, ""
}

func (p *places) give(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.held[owner]--; p.held[owner] == 0 {
		delete(p.held, owner)
	}
}

// Acquire takes a place among the generating requests for an owner (Owner), for doors
// that hold a connection over many. The error is the answer for the client; without one
// release must be called once.
func (s *Server) Acquire(owner string) (release func(), err *api.Error) {
	if err := s.Ready(); err != nil {
		return nil, api.FromEngine(err)
	}
	if ok, why := s.places.take(owner); !ok {
		return nil, &api.Error{
			Status: http.StatusTooManyRequests, Type: api.TypeRateLimit, Code: api.CodeOverloaded,
			Message: why, RetryAfter: s.opt.RetryAfter,
		}
	}
	return func() { s.places.give(owner) }, nil
}
