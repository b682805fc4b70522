package api

import (
	"net/http"
	"time"
)

// ShareOf returns the part of a limit that one peer may take: three quarters, so that no peer locks
// out the others. "" is a single peer, and may take all of it.
func ShareOf(peer string, limit int) int {
	if peer == "" {
		return limit
	}
	return max(1, limit-limit/4)
}

// Shares are places that peers share: a Quota of which each request takes one.
type Shares struct{ q *Quota }

// NewShares returns n places.
func NewShares(limit int) *Shares { return &Shares{NewQuota(int64(limit))} }

// Take takes a place for a peer, to be released once; nil where there is none.
func (s *Shares) Take(peer string) (release func()) {
	if ok, _ := s.q.Try(peer, 1); !ok {
		return nil
	}
	return func() { s.q.Give(peer, 1) }
}

// Held returns the number of places a peer has.
func (s *Shares) Held(peer string) int { return int(s.q.Held(peer)) }

// Overloaded returns a 429 for a client that may try again in a moment.
func Overloaded(message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: CodeOverloaded, Message: message, RetryAfter: time.Second}
}
