package actors

import (
	"cmp"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
)

// spansLate bounds the spans of copies that outlast their step, because a later step needs them.
const spansLate = 1024

// timingShare is the default of Options.TimingShare. Together with the notes of messages, and one step
// in eight timed while no client watches, it stays within what the trace may cost.
const timingShare = 0.01

// timed says whether devices time the copies and waits of the step that a batch begins.
func timed(b *msg.Batch, on func(rank int) bool) {
	for i := range b.Ranks {
		l := &b.Ranks[i]
		l.Timing.Drop()
		if l.Anchor != nil {
			l.Anchor.Release()
			l.Anchor = nil
		}
		if l.State.Timing = nil; on(i) {
			l.State.Timing = &l.Timing
		}
	}
}

// waitAnchored waits as wait does. On a device that does not time steps it reads the clocks of host and
// device at the same moment, so that times of the device can be converted to those of the host.
func waitAnchored(c *turn, b *msg.Batch, s device.Stream) {
	if b.Stream != nil || len(b.Timing.Spans) == 0 || b.Abandoned.Load() {
		wait(b, s)
		return
	}
	at := b.Timing.Begin(s, -1)
	wait(b, s)
	if b.Anchor != nil {
		b.Anchor.Release()
	}
	b.Anchor, b.Anchored = at, c.now()
}

// copyTimes adds the copies of devices, and the waits of compute for them, to the trace.
type copyTimes struct {
	copies *trace.Ring   // of experts; nil: copies are not timed
	blocks []*trace.Ring // of KV blocks, by the queue of the device
	late   []lateSpan
	waits  []trace.Event // of the current step
	// Reused.
	timestamps []device.Timestamp
	ago        []time.Duration
}

// lateSpan is a span whose end the device is not known to have passed. Started of its event is 0
// until the device has passed the beginning.
type lateSpan struct {
	device.TimedSpan
	event trace.Event
	queue int
}

// note takes the spans of a step that has ended, and those of earlier steps that are over by now. It
// records copies and returns the others, sorted by their beginnings. The device passed end when
// the trace's clock showed at.
func (n *copyTimes) note(b *msg.Batch, queue int, about trace.Event, end device.Timestamp, at int64) []trace.Event {
	for i := range b.Timing.Spans {
		x := &b.Timing.Spans[i]
		about.Kind, about.Layer, about.Bytes = kindOf(x), int16(x.Layer), uint64(x.Bytes)
		n.late = append(n.late, lateSpan{*x, about, queue})
	}
	b.Timing.Spans = b.Timing.Spans[:0]
	n.timestamps = n.timestamps[:0]
	for i := range n.late {
		n.timestamps = append(n.timestamps, n.late[i].From, n.late[i].To)
	}
	n.ago = slices.Grow(n.ago[:0], len(n.timestamps))[:len(n.timestamps)]
	end.Ago(n.timestamps, n.ago)
	clear(n.timestamps)

	n.waits = n.waits[:0]
	kept := 0
	for i := range n.late {
		l, from, to := &n.late[i], n.ago[2*i], n.ago[2*i+1]
		if from != device.NotPassed && from != device.Never && l.event.Started == 0 {
			l.event.Started = at - int64(from)
		}
		if to == device.NotPassed && from != device.Never && len(n.late)-i <= spansLate {
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

// place records a copy, and adds a wait to n.waits.
func (n *copyTimes) place(l *lateSpan) {
	switch l.event.Kind {
	case trace.CopyWait, trace.DeviceExperts:
		n.waits = append(n.waits, l.event)
		return
	case trace.CopyExperts:
		n.copies.Record(&l.event)
	default:
		n.blocks[l.queue].Record(&l.event)
	}
	if l.Stalls {
		w := l.event
		w.Kind, w.Bytes = trace.CopyWait, 0
		n.waits = append(n.waits, w)
	}
}

// kindOf returns the kind of event that a span is in the trace.
func kindOf(x *device.TimedSpan) trace.Kind {
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

// around records e in r without the waits within it.
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
