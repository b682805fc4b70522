package webui

import (
	"math"
	"slices"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	// stepsMax bounds the steps of one answer.
	stepsMax = 500
	// pathsMax bounds the batches whose critical path is looked for.
	pathsMax = 64
	// gapLeast is the shortest gap that is named, in ns.
	gapLeast = 2000
	// gapsMax bounds the gaps of one answer.
	gapsMax = 5000
)

// events is a stretch of the trace on the wire.
type events struct {
	Type    string     `json:"type"` // "events"
	For     string     `json:"for"`  // what the viewer asked for: steps or a request
	ID      uint64     `json:"id,omitempty"`
	Lanes   []string   `json:"lanes"`
	Devices []string   `json:"devices"`
	Events  [][]any    `json:"events"` // see eventFields
	Paths   [][]any    `json:"paths"`  // batch, lane, index in Events, from, to, wait, why, copy
	Gaps    [][]any    `json:"gaps"`   // lane, from, to, cause, why
	Riders  [][]uint64 `json:"riders"` // batch, request, rows, decode
	Where   *shares    `json:"where,omitempty"`
	// Kept is, per lane, the end of the oldest event that is still there; 0: nothing was lost.
	Kept []int64 `json:"kept"`
	// Older says that the request may have had more steps than are known.
	Older bool `json:"older,omitempty"`
}

// answer returns what a viewer asked for.
func (p *Page) answer(g *trace.Registry, a *ask) *events {
	var tracks []trace.Track
	var since int64
	var cut int64 // events that ended before this are left out
	if a.Type == "request" {
		tracks, cut = p.request(g, a.ID)
	} else {
		tracks, since = g.Steps(min(max(a.N, 1), stepsMax), p.opt.MaxEvents)
	}
	kept := map[string]int64{}
	for _, ring := range g.Rings() {
		kept[ring.Name()] = ring.Kept()
	}
	r := &events{
		Type: "events", For: a.Type, ID: a.ID, Devices: g.Devices(),
		Lanes: []string{}, Events: [][]any{}, Paths: [][]any{}, Gaps: [][]any{}, Riders: [][]uint64{}, Kept: []int64{},
	}
	first := make([]int, len(tracks)) // index of a lane's first event
	var batches []uint64
	seen := map[uint64]bool{}
	for t := range tracks {
		first[t] = len(r.Events)
		r.Lanes = append(r.Lanes, tracks[t].Name)
		r.Kept = append(r.Kept, max(cut, kept[tracks[t].Name]))
		for i := range tracks[t].Events {
			e := &tracks[t].Events[i]
			r.Events = append(r.Events, wire(t, e))
			if e.Batch != 0 && !seen[e.Batch] {
				seen[e.Batch] = true
				batches = append(batches, e.Batch)
			}
		}
	}
	last := batches[max(0, len(batches)-pathsMax):]
	if a.Type == "request" {
		r.Where = divideRequest(g, a.ID, tracks)
		ids, oldest := g.Roster().Of(a.ID), g.Roster().Last(math.MaxInt)
		r.Older = len(ids) > 0 && ids[0] == oldest[0] && ids[0] > 1
	} else {
		r.Where = divide(tracks, batches, pathsMax, since)
	}
	for i, path := range trace.Paths(tracks, last, since) {
		for _, x := range path {
			r.Paths = append(r.Paths, []any{last[i], x.Track, first[x.Track] + x.Event, x.From, x.To, x.Wait, x.Why, x.Copy})
		}
	}
	for _, b := range batches {
		for _, x := range g.Roster().Riders(b) {
			decode := uint64(0)
			if x.Decode {
				decode = 1
			}
			r.Riders = append(r.Riders, []uint64{b, x.Request, uint64(x.Rows), decode})
		}
	}
	for _, x := range trace.Gaps(tracks, gapLeast) {
		if len(r.Gaps) < gapsMax {
			r.Gaps = append(r.Gaps, []any{x.Track, x.From, x.To, x.Cause, x.Why})
		}
	}
	return r
}

// request returns the events of a request. It also returns the end of the newest event left out
// because there are too many (0: none). A running request has an event that ends now.
func (p *Page) request(g *trace.Registry, id uint64) (tracks []trace.Track, cut int64) {
	tracks = g.Request(id, math.MaxInt)
	count := func() (n int, oldest int64) {
		oldest = math.MaxInt64
		for t := range tracks {
			for i := range tracks[t].Events {
				oldest = min(oldest, tracks[t].Events[i].Ended)
			}
			n += len(tracks[t].Events)
		}
		return n, oldest
	}
	if n, _ := count(); n > p.opt.MaxEvents {
		tracks = trace.Pick(tracks, p.opt.MaxEvents, func(*trace.Event) bool { return true })
		_, cut = count()
	}
	for _, q := range p.src.Running() {
		if q.ID != id || q.Phase == engine.Ended {
			continue
		}
		now := trace.Now()
		e := trace.Event{Kind: trace.Request, Request: id, Layer: -1, Enqueued: now - int64(q.Since), Ended: now, Rows: uint32(q.Generated)}
		e.Started = e.Enqueued + int64(q.Waited)
		if i := slices.IndexFunc(tracks, func(t trace.Track) bool { return t.Name == "stream" }); i >= 0 {
			tracks[i].Events = append(tracks[i].Events, e)
		}
	}
	return tracks, cut
}

// wire returns an event as a list: lane, kind, batch, request, enqueued, started, ended, rows,
// layer, parts, bytes, micro-batch, device, others. Times are ns on the trace's clock.
func wire(lane int, e *trace.Event) []any {
	return []any{
		lane, e.Kind.String(), e.Batch, e.Request, e.Enqueued, e.Started, e.Ended, e.Rows,
		e.Layer, e.Parts, e.Bytes, e.Lane, e.Device, e.Others,
	}
}
