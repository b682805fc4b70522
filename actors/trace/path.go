package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Piece is a segment of a batch's critical path: an actor's work on it, or a message that waited
// for an actor.
type Piece struct {
	Track    int // of the actor: an index of the tracks
	Event    int // an index of the track's events
	From, To int64
	Wait     bool
	Copy     bool   // a device waited for a copy meanwhile, and the actor for the device
	Hop      bool   // of a wait: the batch was in flight from another process
	Why      string // of a wait
}

// Path returns the critical path of a batch's step, in order: from the end of its last message back to
// the event that sent that message, at the moment of sending, and so on. Where an actor waited for
// a device, it has what the device was doing, or a wait for the copy that the device waited for.
// Pieces follow each other; concurrent work is not included. It is nil if no track knows the batch.
func Path(tracks []Track, batch uint64) []Piece {
	w := walk{tracks: tracks, processes: make([]string, len(tracks))}
	for t := range tracks {
		w.processes[t], _ = Process(tracks[t].Name)
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Batch == batch && e.ofStep() {
				w.steps = append(w.steps, visit{t, i, e})
			}
		}
	}
	if batch == 0 || len(w.steps) == 0 {
		return nil
	}
	last := slices.MaxFunc(w.steps, func(a, b visit) int { // a batch ends in the process that it began in
		return cmp.Or(strings.Compare(w.processes[b.track], w.processes[a.track]), cmp.Compare(a.e.left(), b.e.left()))
	})
	return byDevice(tracks, w.back(last), batch)
}

// Paths returns each batch's critical path, in the batches' order, trimmed where batches overlap,
// so that they add up to wall time: of a batch that was in flight before another was back, only
// what comes after that moment is left. since is when a batch that is not among them was back (0:
// none was).
func Paths(tracks []Track, batches []uint64, since int64) [][]Piece {
	paths := make([][]Piece, len(batches))
	ends, order := make([]int64, len(batches)), make([]int, 0, len(batches))
	for i, b := range batches {
		if paths[i] = Path(tracks, b); len(paths[i]) > 0 {
			ends[i] = paths[i][len(paths[i])-1].To
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ends[a], ends[b]) })
	for _, i := range order {
		kept := paths[i][:0]
		for _, p := range paths[i] {
			if p.From = max(p.From, since); p.From < p.To {
				kept = append(kept, p)
			}
		}
		paths[i], since = kept, ends[i]
	}
	return paths
}

// ofStep reports whether an event is part of a batch's way; text goes out beside it, and what
// a device does has no sender.
func (e *Event) ofStep() bool {
	switch e.Kind {
	case Request, Prefill, Stream, Control, Device, DeviceEmbed, DeviceGroup, DeviceHead, DeviceExperts, CopyWait:
		return false
	}
	return !e.Kind.aside()
}

// left is when the batch was done there. Sending it to another process may go on when it is back.
func (e *Event) left() int64 {
	if e.Kind == Link {
		return e.Started
	}
	return e.Ended
}

type visit struct {
	track, event int
	e            *Event
}

type walk struct {
	tracks    []Track
	processes []string // of tracks
	steps     []visit
	pieces    []Piece
}

func (w *walk) back(at visit) []Piece {
	until := at.e.Ended
	for range w.steps { // as many pieces of work at most
		from := min(at.e.Started, until)
		w.pieces = append(w.pieces, Piece{Track: at.track, Event: at.event, From: from, To: until})
		sent := at.e.Enqueued
		if sent == 0 || sent > from {
			sent = from
		}
		before, ok := w.sender(at, sent)
		if !ok {
			break
		}
		if sent < from {
			wait := Piece{Track: at.track, Event: at.event, From: sent, To: from, Wait: true}
			process, own := w.processes[before.track], w.processes[at.track]
			switch {
			case at.e.Kind != Hop:
				wait.Why = w.busy(at, sent, from)
			case process == own:
				wait.Why = "in other processes, whose record is not here"
			default:
				wait.Hop, wait.Why = true, fmt.Sprintf("in flight from %s to %s", cmp.Or(process, leader), cmp.Or(own, leader))
			}
			w.pieces = append(w.pieces, wait)
		}
		at, until = before, min(sent, before.e.Ended)
		if until < sent { // no actor is known to have had it
			last := &w.pieces[len(w.pieces)-1]
			last.From = until
		}
	}
	slices.Reverse(w.pieces)
	return w.pieces
}

// sender returns the event that sent the message of at: of the events under way at that moment the
// one that began last, else the one that ended last before. Only hops come from other processes. What comes out of a split, a pool or a
// merge can only come from there, whatever else of the batch is under way.
func (w *walk) sender(at visit, sent int64) (best visit, found bool) {
	var most [3]int64
	latest := sent
	if at.e.Kind == Hop {
		latest += clocksApart
	}
	for _, v := range w.steps {
		if v.e == at.e || v.e.Started >= at.e.Started || v.e.Started > latest {
			continue
		}
		elsewhere := w.processes[v.track] != w.processes[at.track]
		if elsewhere && (at.e.Kind != Hop || v.e.Kind != Link) {
			continue
		}
		rank := [3]int64{0, 0, v.e.Ended}
		if elsewhere {
			rank[0] = 2
		} else if v.e.Layer == at.e.Layer && gives(v.e.Kind, at.e.Kind) {
			rank[0] = 1
		}
		if v.e.Ended >= sent {
			rank[1], rank[2] = 1, v.e.Started
		}
		if !found || slices.Compare(rank[:], most[:]) > 0 {
			best, found, most = v, true, rank
		}
	}
	return best, found
}

// leader names this process beside others.
const leader = "the leader"

// clocksApart is how much later than a message the event that sent it may seem to begin where they are of two processes, in ns.
const clocksApart = 1e6

// gives reports whether an actor of one kind sends what one of another gets about a layer.
func gives(from, to Kind) bool {
	switch to {
	case Experts:
		return from == Split
	case Merge:
		return from == Experts
	case Group:
		return from == Merge
	}
	return false
}

// busy words why a message waited: what its receiver did instead.
func (w *walk) busy(at visit, from, to int64) string {
	name := w.tracks[at.track].Name
	for i := range w.tracks[at.track].Events {
		e := &w.tracks[at.track].Events[i]
		if i == at.event || e.Kind == Request || e.Kind == Prefill {
			continue
		}
		if overlap := min(e.Ended, to) - max(e.Started, from); overlap*2 > to-from {
			if e.Batch == 0 || e.Batch == at.e.Batch {
				return fmt.Sprintf("waiting for %s, which was busy", name)
			}
			return fmt.Sprintf("waiting for %s, which was busy with step %d", name, e.Batch)
		}
	}
	return fmt.Sprintf("waiting for %s to wake up", name)
}
