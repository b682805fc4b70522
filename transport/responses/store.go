package responses

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"krater/transport/api"
)

// maxTombs bounds the ids that are remembered as expired.
const maxTombs = 4096

// store keeps responses so that they can be fetched, resumed and continued: the running ones, and
// those that ended less than keep ago, within limits of number and bytes. Beyond the limits it
// drops the oldest response of the peer that holds most, so that no client's flood displaces what
// another needs. A response that a connection may still continue (pinned) is kept beyond its time
// for that purpose, within the same limits.
type store struct {
	keep     time.Duration
	maxCount int
	maxBytes int

	mu    sync.Mutex
	byID  map[string]*entry
	ended *list.List // of *entry, the oldest first
	bytes int
	owned map[string]share // by peer
	tombs map[string]tomb  // by the id of an expired response
	order []string         // the ids of tombs, the oldest first
	timer *time.Timer
}

// share counts the responses that a peer holds.
type share struct {
	count int // responses, running ones too
	ended int // of them
	bytes int // of those
	tombs int
}

// tomb remembers the owner and peer of an expired response.
type tomb struct{ owner, peer string }

type entry struct {
	r     *response
	place *list.Element // in ended; nil while it runs
	at    time.Time     // when it ended
	bytes int
	pins  int
	stale bool // kept for its pins only
}

func newStore(keep time.Duration, maxCount, maxBytes int) *store {
	return &store{
		keep: keep, maxCount: maxCount, maxBytes: maxBytes,
		byID: map[string]*entry{}, ended: list.New(), owned: map[string]share{}, tombs: map[string]tomb{},
	}
}

// put takes a running response.
func (s *store) put(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[r.id] = &entry{r: r}
	s.own(r.peer, share{count: 1})
	s.trim()
}

// settle notes that r has ended: from now on it ages and counts.
func (s *store) settle(r *response) {
	bytes, at := r.weigh()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[r.id]
	if e == nil || e.place != nil { // deleted meanwhile
		return
	}
	e.bytes, e.at = bytes, at
	s.own(e.r.peer, share{ended: 1, bytes: bytes})
	e.place = s.ended.PushBack(e)
	s.trim()
	s.arm()
}

// find returns the owner's response with that id. Its error distinguishes an unknown id from one
// that has expired. Hidden responses (store: false) are found only if hidden is true.
func (s *store) find(owner, id string, hidden bool) (*response, *api.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	e := s.byID[id]
	if e != nil && e.r.owner == owner && !e.stale && (hidden || e.r.plan.store) {
		return e.r, nil
	}
	tomb, was := s.tombs[id]
	if (was && tomb.owner == owner) || (e != nil && e.stale && e.r.owner == owner) {
		return nil, notFound(codeExpired, "the response '%s' is no longer kept", api.Clip(id))
	}
	return nil, notFound(codeNotFound, "there is no response '%s'", api.Clip(id))
}

// remove forgets r at once.
func (s *store) remove(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[r.id]; e != nil {
		s.drop(e)
	}
}

// pin keeps r for a connection that may continue it; false if it is gone.
func (s *store) pin(r *response) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[r.id]
	if e != nil {
		e.pins++
	}
	return e != nil
}

// kept reports whether a pinned response is still here: the bounds go before pins.
func (s *store) kept(r *response) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[r.id] != nil
}

// unpin takes one pin back.
func (s *store) unpin(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[r.id]
	if e == nil {
		return
	}
	if e.pins--; e.pins <= 0 && e.stale {
		s.expire(e)
	}
}

// close ends the timer. The store stays usable.
func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// trim removes responses that are too old or exceed the limits; s.mu is held.
func (s *store) trim() {
	limit := time.Now().Add(-s.keep)
	for el := s.ended.Front(); el != nil; {
		e := el.Value.(*entry)
		el = el.Next()
		if e.at.After(limit) {
			break
		}
		if e.pins > 0 {
			e.stale = true
			continue
		}
		s.expire(e)
	}
	for s.ended.Len() > 0 && (s.bytes > s.maxBytes || len(s.byID) > s.maxCount) {
		s.expire(s.next())
	}
}

// arm sets the timer for the next one to grow old; s.mu is held.
func (s *store) arm() {
	for el := s.ended.Front(); el != nil; el = el.Next() {
		e := el.Value.(*entry)
		if e.stale {
			continue
		}
		wait := time.Until(e.at.Add(s.keep))
		if s.timer == nil {
			s.timer = time.AfterFunc(wait, s.tick)
		} else {
			s.timer.Reset(wait)
		}
		return
	}
}

func (s *store) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	s.arm()
}

// expire drops e and remembers that it was here; s.mu is held.
func (s *store) expire(e *entry) {
	s.drop(e)
	if len(s.order) >= maxTombs {
		peer := s.fullest(func(x share) int { return x.tombs })
		i := slices.IndexFunc(s.order, func(id string) bool { return s.tombs[id].peer == peer })
		delete(s.tombs, s.order[i])
		s.order = slices.Delete(s.order, i, i+1)
		s.own(peer, share{tombs: -1})
	}
	s.tombs[e.r.id] = tomb{e.r.owner, e.r.peer}
	s.order = append(s.order, e.r.id)
	s.own(e.r.peer, share{tombs: 1})
}

func (s *store) drop(e *entry) {
	delete(s.byID, e.r.id)
	if e.place != nil {
		s.ended.Remove(e.place)
		s.own(e.r.peer, share{count: -1, ended: -1, bytes: -e.bytes})
	} else {
		s.own(e.r.peer, share{count: -1})
	}
}

// own adds to what a peer holds; s.mu is held.
func (s *store) own(peer string, more share) {
	s.bytes += more.bytes
	x := s.owned[peer]
	x = share{x.count + more.count, x.ended + more.ended, x.bytes + more.bytes, x.tombs + more.tombs}
	if s.owned[peer] = x; x == (share{}) {
		delete(s.owned, peer)
	}
}

// fullest returns the peer with the largest amount above 0; s.mu is held.
func (s *store) fullest(amount func(share) int) string {
	peer, most := "", 0
	for p, x := range s.owned {
		if n := amount(x); n > most || n == most && n > 0 && p < peer {
			peer, most = p, n
		}
	}
	return peer
}

// next returns the response to drop: the oldest ended one of the peer that holds most. There is
// always one; s.mu is held.
func (s *store) next() *entry {
	peer := s.fullest(func(x share) int {
		switch {
		case x.ended == 0:
			return 0
		case s.bytes > s.maxBytes:
			return x.bytes
		}
		return x.count
	})
	el := s.ended.Front()
	for el.Value.(*entry).r.peer != peer {
		el = el.Next()
	}
	return el.Value.(*entry)
}
