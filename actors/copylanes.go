package actors

import (
	"cmp"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
)

// lapsLate bounds the copies that are remembered until the device has done them: those that a
// step began for a later one.
const lapsLate = 1024

// lapShare is Options.LapShare where it is not set: with the notes of messages, and one step in
// eight timed while nobody looks, within what the trace may cost.
const lapShare = 0.01

// timed says whether devices take the time of the copies and waits of the step that a
// batch begins.
func timed(b *msg.Batch, on func(rank int) bool) {
	for i := range b.Ranks {
		l := &b.Ranks[i]
		l.Laps.Drop()
		if l.Anchor != nil {
			l.Anchor.Release()
			l.Anchor = nil
		}
		if l.State.Laps = nil; on(i) {
			l.State.Laps = &l.Laps
		}
	}
}

// anchored is wait, and on a device that does not time steps has host and device look at their
// clocks at the same moment, by which times of the device are told in those of the host.
func anchored(c *turn, b *msg.Batch, s device.Stream) {
	if b.Stream != nil || len(b.Laps.List) == 0 || b.Abandoned.Load() {
		wait(b, s)
		return
	}
	at := b.Laps.Begin(s, -1)
	wait(b, s)
	if b.Anchor != nil {
		b.Anchor.Release()
	}
	b.Anchor, b.Anchored = at, c.now()
}

// copyLanes notes what devices tell of copies, and of compute that waited for them.
type copyLanes struct {
	copies *trace.Ring   // of experts; nil: nobody tells
	blocks []*trace.Ring // of KV blocks, by the lane of the device
	late   []lateLap
	waits  []trace.Event // of the step in hand
	// Reused.
	moments []device.Moment
	ago     []time.Duration
}

// lateLap is a lap whose end the device is not known to have passed. Of its event Started is 0
// until its beginning was passed.
type lateLap struct {
	device.Lap
	event trace.Event
	home  int
}

// note sorts the laps of a step that has ended, and those of earlier ones that are over by
// now: copies go to their lane at once; the others are given, by their beginnings. The device
// passed end when the trace's clock showed at.
func (n *copyLanes) note(b *msg.Batch, home int, about trace.Event, end device.Moment, at int64) []trace.Event {
	for i := range b.Laps.List {
		x := &b.Laps.List[i]
		about.Kind, about.Layer, about.Bytes = kindOf(x), int16(x.Layer), uint64(x.Bytes)
		n.late = append(n.late, lateLap{*x, about, home})
	}
	b.Laps.List = b.Laps.List[:0]
	n.moments = n.moments[:0]
	for i := range n.late {
		n.moments = append(n.moments, n.late[i].From, n.late[i].To)
	}
	n.ago = slices.Grow(n.ago[:0], len(n.moments))[:len(n.moments)]
	end.Ago(n.moments, n.ago)
	clear(n.moments)

	n.waits = n.waits[:0]
	kept := 0
	for i := range n.late {
		l, from, to := &n.late[i], n.ago[2*i], n.ago[2*i+1]
		if from != device.NotPassed && from != device.Never && l.event.Started == 0 {
			l.event.Started = at - int64(from)
		}
		if to == device.NotPassed && from != device.Never && len(n.late)-i <= lapsLate {
			n.late[kept] = *l
			kept++
			continue
		}
		l.Release()
		if to != device.NotPassed && to != device.Never && l.event.Started != 0 {
			l.event.Ended = max(l.event.Started, at-int64(to))
			n.place(l)
		}
	}
	clear(n.late[kept:])
	n.late = n.late[:kept]
	slices.SortFunc(n.waits, func(a, b trace.Event) int { return cmp.Compare(a.Started, b.Started) })
	return n.waits
}

func (n *copyLanes) place(l *lateLap) {
	switch l.event.Kind {
	case trace.CopyWait, trace.DeviceExperts:
		n.waits = append(n.waits, l.event)
		return
	case trace.CopyExperts:
		n.copies.Record(&l.event)
	default:
		n.blocks[l.home].Record(&l.event)
	}
	if l.Stalls {
		w := l.event
		w.Kind, w.Bytes = trace.CopyWait, 0
		n.waits = append(n.waits, w)
	}
}

func kindOf(x *device.Lap) trace.Kind {
	switch {
	case x.Kind == device.CopyWait:
		return trace.CopyWait
	case x.Kind == device.Compute:
		return trace.DeviceExperts
	case x.Layer >= 0:
		return trace.CopyExperts
	case x.Kind == device.CopyOut:
		return trace.SaveKV
	}
	return trace.CopyKV
}

// around records e in r, without the waits that lie within.
func around(r *trace.Ring, e trace.Event, waits []trace.Event) {
	end := e.Ended
	for i := range waits {
		w := &waits[i]
		if w.Kind != trace.CopyWait || w.Ended <= e.Started || w.Started >= end {
			continue
		}
		if e.Ended = w.Started; e.Ended > e.Started {
			r.Record(&e)
		}
		e.Started = min(w.Ended, end)
	}
	if e.Ended = end; e.Ended > e.Started || len(waits) == 0 {
		r.Record(&e)
	}
}
