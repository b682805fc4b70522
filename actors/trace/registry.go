package trace

import (
	"cmp"
	"slices"
	"sync"
)

// Registry has the rings of a pipeline by actor name. It is safe for concurrent
// use; actors take their ring once, at their start.
type Registry struct {
	events int
	mu     sync.Mutex
	rings  []*Ring // by name
}

// NewRegistry makes an empty registry whose rings keep at least that many
// events each: 72 bytes an event, in blocks of 256.
func NewRegistry(events int) *Registry { return &Registry{events: events} }

// Ring returns the ring of an actor and creates it on first use. The next
// incarnation of a failed actor goes on in the same ring. Rings are never
// removed: names come from the blueprint, not from requests.
func (g *Registry) Ring(name string) *Ring {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, found := slices.BinarySearchFunc(g.rings, name, func(r *Ring, name string) int { return cmp.Compare(r.name, name) })
	if !found {
		g.rings = slices.Insert(g.rings, i, newRing(name, g.events))
	}
	return g.rings[i]
}

// Rings returns all rings in the order of their names.
func (g *Registry) Rings() []*Ring {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.rings)
}

// Track is what an actor did, oldest first.
type Track struct {
	Name   string
	Events []Event
}

// Snapshot copies the events that ended at or after since (as of Now), a track
// for each actor in the order of their names, empty ones too.
func (g *Registry) Snapshot(since int64) []Track {
	rings := g.Rings()
	tracks := make([]Track, len(rings))
	for i, r := range rings {
		events, _ := r.Read(nil, 0)
		tracks[i] = Track{
			Name:   r.name,
			Events: slices.DeleteFunc(events, func(e Event) bool { return e.Ended < since }),
		}
	}
	return tracks
}
