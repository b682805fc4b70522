package trace

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Told is the part of a process's record that it tells another.
type Told struct {
	Devices []string    `json:"devices"`
	Tracks  []ToldTrack `json:"tracks"` // of actors that have news
}

// ToldTrack has the events of an actor.
type ToldTrack struct {
	Name   string `json:"name"`
	Next   uint64 `json:"next"` // number of the event that comes next
	Events Packed `json:"events"`
}

// Packed are events that travel as bytes, 72 for each.
type Packed []Event

var eventBytes = binary.Size(Event{})

// MarshalJSON implements json.Marshaler.
func (l Packed) MarshalJSON() ([]byte, error) {
	data, err := binary.Append(nil, binary.LittleEndian, []Event(l))
	if err != nil {
		return nil, err
	}
	return json.Marshal(data)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Packed) UnmarshalJSON(text []byte) error {
	var data []byte
	if err := json.Unmarshal(text, &data); err != nil {
		return err
	}
	if len(data)%eventBytes != 0 {
		return fmt.Errorf("events in %d bytes", len(data))
	}
	*l = make(Packed, len(data)/eventBytes)
	if _, err := binary.Decode(data, binary.LittleEndian, []Event(*l)); err != nil {
		return err
	}
	for i := range *l {
		if e := &(*l)[i]; e.Kind >= kinds || e.Ended < e.Started {
			return fmt.Errorf("an event of kind %d from %d to %d", e.Kind, e.Started, e.Ended)
		}
	}
	return nil
}

// Tell returns the events of each actor from those numbers on that from has; of others all that are kept. There are
// at most most of them, with an equal bound for each actor, and the oldest are left out.
func (g *Registry) Tell(from map[string]uint64, most int) *Told {
	t, rings := &Told{Devices: g.Devices()}, g.Rings()
	for _, r := range rings {
		events, next := r.Read(nil, from[r.name])
		if len(events) > 0 {
			t.Tracks = append(t.Tracks, ToldTrack{r.name, next, events[max(0, len(events)-most/len(rings)):]})
		}
	}
	return t
}

// Shift subtracts from all times what the clock that they are from is ahead: own is that of the process that tells, and
// before that of the process before it, from which its hops come.
func (t *Told) Shift(own, before int64) {
	for i := range t.Tracks {
		for j := range t.Tracks[i].Events {
			e := &t.Tracks[i].Events[j]
			e.Started, e.Ended = e.Started-own, e.Ended-own
			switch {
			case e.Enqueued == 0:
			case e.Kind == Hop: // clocks are not known to better than this
				e.Enqueued = min(e.Enqueued-before, e.Started)
			default:
				e.Enqueued -= own
			}
		}
	}
}

// Remote is the record of another process, which a registry has beside its own.
type Remote struct {
	// Process names the process: it and a slash come before the names of its actors.
	Process string
	// Ask asks for what Tell returns, with the times of this process's clock, and while that is asked for with detail
	// for a record of every batch.
	Ask func(from map[string]uint64, detail bool) (*Told, error)

	next map[string]uint64 // number of an actor's event that comes next
}

// remoteActors bounds the actors of another process.
const remoteActors = 1024

// Follow adds the record of another process. Refresh asks for it until stop is called.
func (g *Registry) Follow(r *Remote) (stop func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.next = map[string]uint64{}
	g.remotes = append(g.remotes, r)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.remotes = slices.DeleteFunc(g.remotes, func(x *Remote) bool { return x == r })
	}
}

// Refresh asks the other processes for what they have recorded since the last call, all at the same time. What one
// does not answer is left out.
func (g *Registry) Refresh() {
	g.asking.Lock()
	defer g.asking.Unlock()
	g.mu.Lock()
	remotes := slices.Clone(g.remotes)
	g.mu.Unlock()
	told, detail := make([]*Told, len(remotes)), g.watch.Load() > 0
	var wg sync.WaitGroup
	for i, r := range remotes {
		wg.Go(func() {
			if t, err := r.Ask(r.next, detail); err == nil {
				told[i] = t
			}
		})
	}
	wg.Wait()
	for i, r := range remotes {
		if told[i] != nil {
			g.take(r, told[i])
		}
	}
}

// take records what another process has told.
func (g *Registry) take(r *Remote, t *Told) {
	devices := make([]uint8, len(t.Devices))
	for i, name := range t.Devices {
		devices[i] = g.Device(name)
	}
	for _, track := range t.Tracks {
		if _, known := r.next[track.Name]; !known && len(r.next) == remoteActors {
			continue
		}
		r.next[track.Name] = track.Next
		ring := g.Ring(Lane(r.Process, track.Name))
		for _, e := range track.Events {
			if int(e.Device) < len(devices) {
				e.Device = devices[e.Device]
			}
			ring.Record(&e)
		}
	}
}

// Lane names the row of an actor of another process.
func Lane(process, actor string) string { return process + "/" + actor }

// Process returns the process of a row, "" for this one, and the row's name there.
func Process(lane string) (process, actor string) {
	i := strings.LastIndexByte(lane, '/')
	return lane[:max(i, 0)], lane[i+1:]
}
