package webui

import (
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
	For     string     `json:"for"`  // what was asked for: steps, request
	ID      uint64     `json:"id,omitempty"`
	Lanes   []string   `json:"lanes"`
	Devices []string   `json:"devices"`
	Events  [][]any    `json:"events"` // see eventFields
	Paths   [][]any    `json:"paths"`  // batch, lane, index in Events, from, to, wait, why, copy
	Gaps    [][]any    `json:"gaps"`   // lane, from, to, cause, why
	Riders  [][]uint64 `json:"riders"` // batch, request, rows, decode
}

// answer is what a viewer asked for.
func (p *Page) answer(g *trace.Registry, a *ask) *events {
	var tracks []trace.Track
	var since int64
	if a.Type == "request" {
		tracks = g.Request(a.ID, p.opt.MaxEvents)
	} else {
		tracks, since = g.Steps(min(max(a.N, 1), stepsMax), p.opt.MaxEvents)
	}
	r := &events{
		Type: "events", For: a.Type, ID: a.ID, Devices: g.Devices(),
		Lanes: []string{}, Events: [][]any{}, Paths: [][]any{}, Gaps: [][]any{}, Riders: [][]uint64{},
	}
	first := make([]int, len(tracks)) // of a lane, among all events
	var batches []uint64
	seen := map[uint64]bool{}
	for t := range tracks {
		first[t] = len(r.Events)
		r.Lanes = append(r.Lanes, tracks[t].Name)
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

// wire is an event as a list: lane, kind, batch, request, enqueued, started, ended, rows,
// layer, parts, bytes, micro-batch, device, others. Times are ns on the trace's clock.
func wire(lane int, e *trace.Event) []any {
	return []any{
		lane, e.Kind.String(), e.Batch, e.Request, e.Enqueued, e.Started, e.Ended, e.Rows,
		e.Layer, e.Parts, e.Bytes, e.Lane, e.Device, e.Others,
	}
}
