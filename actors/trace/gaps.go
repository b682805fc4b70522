package trace

import (
	"cmp"
	"fmt"
	"slices"
)

// Cause sorts gaps by what an actor waited for.
type Cause string

// The causes of a gap.
const (
	ForPool   Cause = "pool"   // experts were computed elsewhere
	ForCredit Cause = "credit" // every batch was in flight
	ForStep   Cause = "step"   // other actors were still making the next message
	ForWake   Cause = "wake"   // the message was there before the actor was awake
	ForHop    Cause = "hop"    // a batch was in flight from another process
	ForCopy   Cause = "copy"   // a device waited for a copy, by its own clock
	Idle      Cause = "idle"   // there was nothing to do
)

// Gap is a time in which an actor did nothing.
type Gap struct {
	Track    int
	From, To int64
	Cause    Cause
	Why      string
}

// Gaps says what actors and devices waited for between their events, where that took at least
// least. A wait for a copy that a device has measured is one, too.
func Gaps(tracks []Track, least int64) []Gap {
	batches := map[uint64][]visit{}
	for t := range tracks {
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Batch != 0 && e.ofStep() {
				batches[e.Batch] = append(batches[e.Batch], visit{t, i, e})
			}
		}
	}
	var gaps []Gap
	for t := range tracks {
		var events []*Event
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Kind != Request && e.Kind != Prefill && !e.Kind.aside() {
				events = append(events, e)
			}
		}
		slices.SortStableFunc(events, func(a, b *Event) int { return cmp.Compare(a.Started, b.Started) })
		over := int64(0) // until when the lane is known to have been at work
		for i, e := range events {
			if g := (Gap{Track: t, From: over, To: e.Started}); i > 0 && g.To-g.From >= max(1, least) {
				g.explain(tracks, e, batches[e.Batch])
				gaps = append(gaps, g)
			}
			if e.Kind == CopyWait && e.Ended-e.Started >= max(1, least) {
				gaps = append(gaps, Gap{Track: t, From: e.Started, To: e.Ended, Cause: ForCopy, Why: e.copyWanted()})
			}
			if i == 0 || e.Ended > over {
				over = e.Ended
			}
		}
	}
	return gaps
}

// explain says why the actor did nothing before next, whose batch was seen at steps.
func (g *Gap) explain(tracks []Track, next *Event, steps []visit) {
	if next.Kind == Hop && next.Enqueued != 0 && next.Enqueued-g.From < g.To-next.Enqueued {
		g.Cause, g.Why = ForHop, fmt.Sprintf("waiting for step %d, which was in flight", next.Batch)
		return
	}
	if next.Enqueued != 0 && next.Enqueued <= g.From {
		g.Cause, g.Why = ForWake, "waking up: the message was there"
		return
	}
	at, most := "", int64(0)
	for _, v := range steps {
		if v.track == g.Track {
			continue
		}
		if overlap := min(v.e.Ended, g.To) - max(v.e.Started, g.From); overlap > most {
			at, most = tracks[v.track].Name, overlap
		}
	}
	switch {
	case next.Batch == 0 || at == "":
		g.Cause, g.Why = Idle, "nothing to do"
	case next.Kind == Group && next.Layer >= 0:
		g.Cause, g.Why = ForPool, fmt.Sprintf("waiting for the experts of layer %d, at %s", next.Layer, at)
	case next.Kind == Schedule:
		g.Cause, g.Why = ForCredit, fmt.Sprintf("waiting for credit: step %d was at %s", next.Batch, at)
	default:
		g.Cause, g.Why = ForStep, fmt.Sprintf("waiting for step %d, which was at %s", next.Batch, at)
	}
}
