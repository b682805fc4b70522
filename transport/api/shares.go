package api

import (
	"net/http"
	"time"
)

// ShareOf returns how much of a limit one peer may have: three quarters, so that none keeps the
// others out. "" is a peer that has nobody to share with, and may have all.
func ShareOf(peer string, limit int) int {
	if peer == "" {
		return limit
	}
	return max(1, limit-limit/4)
}

// Shares are places that peers share: a Quota of which everybody takes one at a time.
type Shares struct{ q *Quota }

// NewShares makes so many places.
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

// Overloaded returns a 429 for somebody who may try again in a moment.
func Overloaded(message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: CodeOverloaded, Message: message, RetryAfter: time.Second}
}
