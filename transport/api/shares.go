package api

import (
	"net/http"
	"sync"
	"time"
)

// ShareOf is how much of a limit one peer may have: three quarters, so that none keeps the others
// out. "" is a peer that has nobody to share with, and may have all.
func ShareOf(peer string, limit int) int {
	if peer == "" {
		return limit
	}
	return max(1, limit-limit/4)
}

// Shares are places that peers share. It is safe for concurrent use.
type Shares struct {
	limit int
	mu    sync.Mutex
	all   int
	held  map[string]int // by peer
}

// NewShares makes so many places.
func NewShares(limit int) *Shares { return &Shares{limit: limit, held: map[string]int{}} }

// Take takes a place for a peer, to be released once; nil where there is none.
func (s *Shares) Take(peer string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= s.limit || s.held[peer] >= ShareOf(peer, s.limit) {
		return nil
	}
	s.add(peer, 1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(peer, -1)
	}
}

func (s *Shares) add(peer string, n int) {
	s.all += n
	if s.held[peer] += n; s.held[peer] == 0 {
		delete(s.held, peer)
	}
}

// Held is how many places a peer has.
func (s *Shares) Held(peer string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[peer]
}

// Overloaded is a 429 for somebody who may try again in a moment.
func Overloaded(message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: CodeOverloaded, Message: message, RetryAfter: time.Second}
}
