package trace

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Registry has the rings of a pipeline by actor name. It is safe for concurrent
// use; actors take their ring once, at their start.
type Registry struct {
	events int
	every  uint64
	watch  atomic.Int32
	until  atomic.Int64 // as of Now: every batch is recorded in detail
	roster Roster

	mu      sync.Mutex
	rings   []*Ring // by name
	devices []string

	asking  sync.Mutex // one Refresh at a time, which alone writes the rings of others
	remotes []*Remote  // protected by mu
}

// everyDefault: one of every everyDefault batches is recorded layer by layer while no page watches.
const everyDefault = 8

// NewRegistry makes an empty registry whose rings keep at least that many
// events each: 72 bytes an event, in blocks of 256.
func NewRegistry(events int) *Registry {
	return &Registry{events: events, every: everyDefault, devices: []string{"host"}}
}

// Detail reports whether the messages about single layers of a batch are to be recorded, and how
// many others each of them stands for. Messages that pass the whole pipeline with a batch are
// always recorded: there are a few per step. There may be hundreds about its layers, whose cost
// would show, so those of one batch in 8 are recorded, and of every batch while a page watches. The
// choice has no rhythm that steps could follow.
func (g *Registry) Detail(batch uint64) (noted bool, others uint8) {
	if until := g.until.Load(); g.watch.Load() > 0 || until != 0 && Now() < until {
		return true, 0
	}
	return mix(batch)%g.every == 0, uint8(g.every - 1)
}

// mix applies the finaliser of SplitMix64 to x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Watch makes every batch be recorded in detail until stop is called, once.
func (g *Registry) Watch() (stop func()) {
	g.watch.Add(1)
	return func() { g.watch.Add(-1) }
}

// WatchFor makes every batch be recorded in detail for some time from now on.
func (g *Registry) WatchFor(d time.Duration) { g.until.Store(Now() + int64(d)) }

// Roster records which requests were in which batch.
func (g *Registry) Roster() *Roster { return &g.roster }

// Device returns the number of a device, by which events name it; 0 is the host.
func (g *Registry) Device(name string) uint8 {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.devices, name)
	if i < 0 {
		i = len(g.devices)
		g.devices = append(g.devices, name)
	}
	return uint8(i)
}

// Devices are the names of devices by their number.
func (g *Registry) Devices() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.devices)
}

// Ring returns the ring of an actor and creates it on first use. The next incarnation of a failed
// actor continues the same ring. Rings are never removed: names come from the blueprint, not from
// requests.
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

// Track holds the events of one actor, oldest first.
type Track struct {
	Name   string
	Events []Event
}

// Snapshot copies the events that ended at or after since, a time as Now returns it. The result has a
// track for each actor, ordered by name, also for actors without events.
func (g *Registry) Snapshot(since int64) (tracks []Track) {
	g.Each(func(r *Ring) {
		events, _ := r.Read(nil, 0)
		tracks = append(tracks, Track{
			Name:   r.name,
			Events: slices.DeleteFunc(events, func(e Event) bool { return e.Ended < since }),
		})
	})
	slices.SortFunc(tracks, func(a, b Track) int { return cmp.Compare(a.Name, b.Name) })
	return tracks
}

// Each calls f for the rings of this process, and then for those of others after a Refresh: what others did for a step that
// the first ones saw the end of is there.
func (g *Registry) Each(f func(*Ring)) {
	own := func(r *Ring) bool {
		process, _ := Process(r.name)
		return process == ""
	}
	for _, r := range g.Rings() {
		if own(r) {
			f(r)
		}
	}
	g.Refresh()
	for _, r := range g.Rings() {
		if !own(r) {
			f(r)
		}
	}
}
