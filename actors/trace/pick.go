package trace

import (
	"cmp"
	"slices"
)

// Pick reduces tracks to the events that keep selects, at most most of them: the newest.
func Pick(tracks []Track, most int, keep func(*Event) bool) []Track {
	picked := make([]Track, len(tracks))
	var ends []int64
	for t := range tracks {
		picked[t].Name = tracks[t].Name
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; keep(e) {
				picked[t].Events = append(picked[t].Events, *e)
				ends = append(ends, e.Ended)
			}
		}
	}
	if len(ends) <= most {
		return picked
	}
	slices.SortFunc(ends, func(a, b int64) int { return cmp.Compare(b, a) })
	from := ends[most]
	for t := range picked {
		picked[t].Events = slices.DeleteFunc(picked[t].Events, func(e Event) bool { return e.Ended <= from })
	}
	return picked
}

// Whole lists the batches in tracks that have gone all the way, from the embedding back to the
// scheduler, by their ends. If none has, it lists all batches with any event.
func Whole(tracks []Track) []uint64 {
	const begun, back = 1, 2
	type seen struct {
		what int
		end  int64
	}
	batches := map[uint64]seen{}
	for t := range tracks {
		for i := range tracks[t].Events {
			e := &tracks[t].Events[i]
			if e.Batch == 0 || !e.ofStep() {
				continue
			}
			s := batches[e.Batch]
			switch e.Kind {
			case Embed:
				s.what |= begun
			case Schedule:
				s.what |= back
			}
			s.end = max(s.end, e.Ended)
			batches[e.Batch] = s
		}
	}
	var whole, all []uint64
	for id, s := range batches {
		all = append(all, id)
		if s.what == begun|back {
			whole = append(whole, id)
		}
	}
	if len(whole) == 0 {
		whole = all
	}
	slices.SortFunc(whole, func(a, b uint64) int { return cmp.Or(cmp.Compare(batches[a].end, batches[b].end), cmp.Compare(a, b)) })
	return whole
}

// inFlightMost is how many of the newest batches may still be in flight.
const inFlightMost = 64

// Steps are the events of the newest n batches that have gone all the way, and when the batch
// before them was back (0: it is not known).
func (g *Registry) Steps(n, most int) (tracks []Track, since int64) {
	tracks = g.batches(g.roster.Last(n+inFlightMost+1), 0, most)
	_, tracks, since = Newest(tracks, n, most)
	return tracks, since
}

// Newest returns the newest n whole batches of tracks and their events, and when the batch before
// them was back (0: there is none).
func Newest(tracks []Track, n, most int) (batches []uint64, picked []Track, since int64) {
	batches = Whole(tracks)
	if before := len(batches) - n; before > 0 {
		since = ended(tracks, batches[before-1])
		batches = batches[before:]
	}
	in := map[uint64]bool{}
	for _, id := range batches {
		in[id] = true
	}
	return batches, Pick(tracks, most, func(e *Event) bool { return in[e.Batch] }), since
}

// ended is when a batch's step was over.
func ended(tracks []Track, batch uint64) (at int64) {
	for t := range tracks {
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Batch == batch && e.ofStep() {
				at = max(at, e.Ended)
			}
		}
	}
	return at
}

// Request returns the events of one request: its own, and the events of all batches that it was in.
// Events that rings or roster have dropped are missing.
func (g *Registry) Request(id uint64, most int) []Track {
	return g.batches(g.roster.Of(id), id, most)
}

func (g *Registry) batches(ids []uint64, request uint64, most int) []Track {
	in := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		in[id] = true
	}
	return Pick(g.Snapshot(0), most, func(e *Event) bool {
		if e.Request != 0 {
			return e.Request == request
		}
		return in[e.Batch]
	})
}
