package trace

import (
	"cmp"
	"fmt"
	"slices"
)

// CopyLane is the lane of the copies of experts to a device, from the device's name.
func CopyLane(device string) string { return device + " copy" }

// KVLane is the lane of KV blocks on their way to host memory and back, from the name of the
// lane of the steps that move them: steps of two lanes may do so at the same time.
func KVLane(device string) string { return device + " kv" }

// PhaseLane is the lane of the phases of what a pool does, from the pool's name.
func PhaseLane(pool string) string { return pool + " phases" }

// aside reports whether a kind is of a lane beside those of actors and devices: of copies, or
// of the phases of what an actor's own lane has in one piece. Nobody waits there.
func (k Kind) aside() bool {
	switch k {
	case CopyExperts, CopyKV, SaveKV, PoolRows, PoolUp, PoolDown, PoolSum:
		return true
	}
	return false
}

// copyWanted words what a device stood still for in a CopyWait.
func (e *Event) copyWanted() string {
	if e.Layer < 0 {
		return "waiting for the copy of KV blocks"
	}
	return fmt.Sprintf("waiting for the copy of layer %d's experts", e.Layer)
}

// waitsForDevice reports whether the actor of an event of this kind may do nothing but wait
// for a device that computes apart from the host.
func (k Kind) waitsForDevice() bool {
	switch k {
	case Embed, Group, Head, Sample:
		return true
	}
	return false
}

// stalls cuts those stretches out of a path in which an actor waited for a device that itself
// waited for a copy: what the step took its time for is the copy.
func stalls(tracks []Track, pieces []Piece, batch uint64) []Piece {
	var waits []*Event
	for t := range tracks {
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Kind == CopyWait && e.Batch == batch && e.Ended > e.Started {
				waits = append(waits, e)
			}
		}
	}
	if len(waits) == 0 {
		return pieces
	}
	slices.SortFunc(waits, func(a, b *Event) int { return cmp.Compare(a.Started, b.Started) })
	var cut []Piece
	for _, p := range pieces {
		if p.Wait || !tracks[p.Track].Events[p.Event].Kind.waitsForDevice() {
			cut = append(cut, p)
			continue
		}
		for _, e := range waits {
			from, to := max(e.Started, p.From), min(e.Ended, p.To)
			if from >= to {
				continue
			}
			if p.From < from {
				before := p
				before.To = from
				cut = append(cut, before)
			}
			cut = append(cut, Piece{Track: p.Track, Event: p.Event, From: from, To: to, Wait: true, Copy: true, Why: e.copyWanted()})
			p.From = to
		}
		if p.From < p.To {
			cut = append(cut, p)
		}
	}
	return cut
}
