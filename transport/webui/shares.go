package webui

import (
	"cmp"
	"slices"

	"krater/actors/trace"
)

// shares says where the time of some steps went. The sentence at the top, the line below it, the
// boxes and the bar of the time line all show it, so they cannot differ.
type shares struct {
	Of    string `json:"of"` // "steps", or "request"
	ID    uint64 `json:"id,omitempty"`
	Steps int    `json:"steps"` // whose time it is
	All   int    `json:"all"`   // steps of the request that are known; at least Steps
	Each  int64  `json:"each"`  // ns a step
	Parts []part `json:"parts"` // the largest first

	// layers is the time of a step in the layers of each process, in ns; that of this one is "".
	layers map[string]int64
}

// part is the share of time in which an actor worked and a step could not continue without it. Work
// of others is not included: while a pool computes the experts of a layer, the time is the pool's.
// With overlapping steps the shares can add up to more than 1.
type part struct {
	Lane  string  `json:"lane"`           // actor or device; of waitHop the receiver; "" for another wait
	Wait  string  `json:"wait,omitempty"` // waitMessage, waitCopy or waitHop
	Share float64 `json:"share"`
}

// The waits of a part.
const (
	waitMessage = "message" // no actor worked: a message was in flight
	waitCopy    = "copy"    // a device waited for a copy
	waitHop     = "hop"     // a batch was in flight from one process to another
)

// span is a stretch of time, in ns.
type span struct{ from, to int64 }

// divide finds the shares of the newest of batches, at most most, from their critical paths. What
// was before the batch before them was back (since, or 0) is no time of theirs.
func divide(tracks []trace.Track, batches []uint64, most int, since int64) *shares {
	if cut := len(batches) - most; cut > 0 {
		since = max(since, ends(tracks)[batches[cut-1]])
		batches = batches[cut:]
	}
	type key struct{ lane, wait string }
	spans := map[key][]span{}
	var all, work []span
	steps, layers := 0, map[string]int64{}
	for _, b := range inDetail(tracks, batches) {
		path := trace.Path(tracks, b)
		if len(path) > 0 {
			steps++
		}
		for _, p := range path {
			s := span{max(p.From, since), p.To}
			if s.from >= s.to {
				continue
			}
			all = append(all, s)
			k := key{lane: tracks[p.Track].Name}
			switch {
			case p.Copy:
				k = key{wait: waitCopy}
			case p.Hop:
				k.wait = waitHop
			case p.Wait:
				continue
			case ofLayers(tracks[p.Track].Events[p.Event].Kind):
				process, _ := trace.Process(k.lane)
				layers[process] += s.to - s.from
			}
			work = append(work, s)
			spans[k] = append(spans[k], s)
		}
	}
	total := length(all)
	if total == 0 {
		return nil
	}
	for process := range layers {
		layers[process] /= int64(steps)
	}
	s := &shares{Of: "steps", Steps: steps, All: steps, Each: total / int64(steps), layers: layers}
	for k, list := range spans {
		s.Parts = append(s.Parts, part{k.lane, k.wait, round3(float64(length(list)) / float64(total))})
	}
	if idle := total - length(work); idle > 0 {
		s.Parts = append(s.Parts, part{Wait: waitMessage, Share: round3(float64(idle) / float64(total))})
	}
	slices.SortFunc(s.Parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Wait, b.Wait))
	})
	return s
}

// ofLayers reports whether an event is work on layers.
func ofLayers(k trace.Kind) bool {
	switch k {
	case trace.Group, trace.Attention, trace.Split, trace.Experts, trace.Merge, trace.Device, trace.DeviceGroup, trace.DeviceExperts:
		return true
	}
	return false
}

// length returns the length of the union of spans, which it sorts.
func length(spans []span) (sum int64) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	until := int64(0)
	for i, s := range spans {
		if i == 0 {
			until = s.from
		}
		if s.to > until {
			sum += s.to - max(s.from, until)
			until = s.to
		}
	}
	return sum
}

// ends is when the known part of each batch had ended.
func ends(tracks []trace.Track) map[uint64]int64 {
	at := map[uint64]int64{}
	for t := range tracks {
		for i := range tracks[t].Events {
			e := &tracks[t].Events[i]
			if e.Kind != trace.Stream { // text is sent independently of a step
				at[e.Batch] = max(at[e.Batch], e.Ended)
			}
		}
	}
	return at
}

// inDetail keeps only the batches whose layers were recorded, if only a sample was. In the others,
// the time of the pools would count as the layers'.
func inDetail(tracks []trace.Track, batches []uint64) []uint64 {
	sampled, detailed := false, map[uint64]bool{}
	for t := range tracks {
		for i := range tracks[t].Events {
			e := &tracks[t].Events[i]
			sampled = sampled || e.Others > 0
			if e.Layer >= 0 {
				detailed[e.Batch] = true
			}
		}
	}
	if !sampled {
		return batches
	}
	return slices.DeleteFunc(slices.Clone(batches), func(b uint64) bool { return !detailed[b] })
}

const (
	// liveSteps and liveTime bound the steps of the current figures.
	liveSteps = 16
	liveTime  = int64(2e9)
	// liveEvery is the interval at which they are computed, in ns.
	liveEvery = int64(1e9)
)

// liveShares returns the shares of the newest steps.
func liveShares(g *trace.Registry, now int64, most int) *shares {
	tracks, since := g.Steps(liveSteps, most)
	batches, at := trace.Whole(tracks), ends(tracks)
	n := len(batches)
	for n > 1 && at[batches[len(batches)-n]] < now-liveTime {
		n--
	}
	return divide(tracks, batches, n, since)
}

// requestShares returns the shares of the newest steps of a request; nil if none is kept.
func requestShares(g *trace.Registry, id uint64, most int) *shares {
	return divideRequest(g, id, g.Request(id, most))
}

func divideRequest(g *trace.Registry, id uint64, tracks []trace.Track) *shares {
	ids := g.Roster().Of(id)
	s := divide(tracks, ids, pathsMax, 0)
	if s != nil {
		s.Of, s.ID, s.All = "request", id, len(ids)
	}
	return s
}
