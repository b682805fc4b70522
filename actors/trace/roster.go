package trace

import (
	"slices"
	"sync"
)

const (
	rosterBatches = 4096
	rosterRiders  = 1 << 16
)

// Rider is a request's part of a batch.
type Rider struct {
	Request uint64
	Rows    uint32
	Decode  bool // one row, from which its next token is chosen; else rows of its prompt
}

// Roster remembers which requests were in the newest batches: events about a batch are about all of
// them. It is safe for concurrent use. The zero value is empty.
type Roster struct {
	mu      sync.Mutex
	batches []seated
	riders  []Rider
	written uint64 // riders ever noted
	noted   uint64 // batches ever noted
}

// seated is a batch with its riders: those numbered from first on.
type seated struct {
	batch uint64
	first uint64
	n     int
}

// Note adds a batch. It keeps no part of riders.
func (r *Roster) Note(batch uint64, riders []Rider) {
	if len(riders) > rosterRiders {
		riders = riders[:rosterRiders]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batches == nil {
		r.batches, r.riders = make([]seated, rosterBatches), make([]Rider, rosterRiders)
	}
	r.batches[r.noted%rosterBatches] = seated{batch, r.written, len(riders)}
	r.noted++
	at := int(r.written % rosterRiders)
	n := copy(r.riders[at:], riders)
	copy(r.riders, riders[n:])
	r.written += uint64(len(riders))
}

// Last are the newest n batches, oldest first: fewer if there are no more.
func (r *Roster) Last(n int) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []uint64
	r.each(func(b seated) bool {
		if n--; n >= 0 {
			ids = append(ids, b.batch)
		}
		return n > 0
	})
	slices.Reverse(ids)
	return ids
}

// Of returns the batches that a request was in, oldest first, as far as they are remembered.
func (r *Roster) Of(request uint64) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []uint64
	r.each(func(b seated) bool {
		for i := range b.n {
			if r.riders[(b.first+uint64(i))%rosterRiders].Request == request {
				ids = append(ids, b.batch)
				break
			}
		}
		return true
	})
	slices.Reverse(ids)
	return ids
}

// Riders are the requests of a batch; nil where it is not remembered.
func (r *Roster) Riders(batch uint64) []Rider {
	r.mu.Lock()
	defer r.mu.Unlock()
	var riders []Rider
	r.each(func(b seated) bool {
		if b.batch != batch {
			return true
		}
		for i := range b.n {
			riders = append(riders, r.riders[(b.first+uint64(i))%rosterRiders])
		}
		return false
	})
	return riders
}

// each visits the batches whose riders are all still there, newest first, until f says
// false. r.mu is held.
func (r *Roster) each(f func(seated) bool) {
	for i := range min(r.noted, rosterBatches) {
		b := r.batches[(r.noted-1-i)%rosterBatches]
		if r.written-b.first > rosterRiders || !f(b) {
			return
		}
	}
}
