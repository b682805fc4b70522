package api

import (
	"context"
	"sync"
)

// Quota is an amount, of places or bytes, that requests share. It has a total and a limit per peer.
// If there are several peers none can take everything, so a request of another peer finds room.
type Quota struct {
	most int64

	mu   sync.Mutex
	used int64
	held map[string]int64 // by peer
	line []*claim         // waiting claims, the first first
}

// claim is a waiting request.
type claim struct {
	peer  string
	n     int64
	taken chan struct{} // closed when the claim is granted
}

// NewQuota returns an amount that peers share. It is safe for concurrent use.
func NewQuota(most int64) *Quota {
	return &Quota{most: most, held: map[string]int64{}}
}

// Share returns the limit per peer.
func (q *Quota) Share(peer string) int64 { return int64(ShareOf(peer, int(q.most))) }

// Try takes n for a peer if that is possible now. alone reports that only this peer is refused: a
// peer may hold three times as much as is free. A single peer gets three quarters, and some is left
// for every further one.
func (q *Quota) Try(peer string, n int64) (ok, alone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.used+n > q.most:
		return false, false
	case peer != "" && q.held[peer]+n > 3*(q.most-q.used-n+1):
		return false, true
	}
	q.take(peer, n)
	return true, false
}

// Wait takes n for a peer, and n must not exceed the peer's share. It gives up when ctx ends.
func (q *Quota) Wait(ctx context.Context, peer string, n int64) bool {
	c := &claim{peer: peer, n: n, taken: make(chan struct{})}
	q.mu.Lock()
	q.line = append(q.line, c)
	q.deal()
	q.mu.Unlock()
	select {
	case <-c.taken:
		return true
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-c.taken: // meanwhile
		return true
	default:
	}
	for i, other := range q.line {
		if other == c {
			q.line = append(q.line[:i], q.line[i+1:]...)
			break
		}
	}
	q.deal() // this claim may have blocked others
	return false
}

// Give takes n back from a peer.
func (q *Quota) Give(peer string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.take(peer, -n)
	q.deal()
}

// Held returns how much a peer holds.
func (q *Quota) Held(peer string) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held[peer]
}

func (q *Quota) take(peer string, n int64) {
	q.used += n
	if q.held[peer] += n; q.held[peer] == 0 {
		delete(q.held, peer)
	}
}

// deal grants waiting claims: first those of the peer that holds the least, and those of one peer
// in order. A claim that is larger than what is free is not overtaken by other peers, or it might
// wait forever, unless its own peer's share is exhausted. q.mu is held.
func (q *Quota) deal() {
	for {
		next := -1
		seen := map[string]bool{}
		for i, c := range q.line {
			if seen[c.peer] {
				continue
			}
			seen[c.peer] = true
			if q.held[c.peer]+c.n <= q.Share(c.peer) && (next < 0 || q.held[c.peer] < q.held[q.line[next].peer]) {
				next = i
			}
		}
		if next < 0 || q.used+q.line[next].n > q.most {
			return
		}
		c := q.line[next]
		q.line = append(q.line[:next], q.line[next+1:]...)
		q.take(c.peer, c.n)
		close(c.taken)
	}
}
