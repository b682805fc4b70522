package actors

import (
	"time"

	"krater/actors/msg"
	"krater/actors/trace"
)

// clocked says whether devices time the step that a batch begins.
func clocked(b *msg.Batch, on bool) {
	for i := range b.Ranks {
		l := &b.Ranks[i]
		l.Parts = l.Parts[:0]
		if l.Stream != nil {
			l.Stream.Time(on)
		}
	}
}

// timePart ends a part of a batch's step on the device.
func timePart(b *msg.Batch, kind trace.Kind) {
	if b.Stream != nil && !b.Quiet && !b.Abandoned.Load() && b.Stream.Mark() {
		b.Parts = append(b.Parts, kind)
	}
}

// stepTimes records how long the device took for a step that has just ended: the parts if the device
// timed them, the copies that they needed, and the waits for those. The device has a clock of its
// own, so its times are given relative to a timestamp whose time on the host is known: the step of a
// batch with its own stream ended at.
func (n *stepEnd) stepTimes(c *turn, b *msg.Batch, ended int64) {
	b.Took = 0
	if b.Quiet || len(n.devices) == 0 {
		return
	}
	queue := b.Queue % len(n.devices)
	about := trace.Event{
		Batch: b.ID, Lane: uint8(b.MicroBatch), Epoch: b.Epoch, Rows: uint32(b.Step.Total()), Layer: -1, Device: c.event.Device, Others: b.Others,
	}
	ring, at, end := n.devices[queue], b.Anchored, b.Anchor
	var took []time.Duration
	if s := b.Stream; s != nil {
		took, at, end = s.Took(), ended, s.End()
		for _, d := range took {
			b.Took += d
		}
		b.Timing.Next(b.Took, s.Clock().Cost(), n.share)
	}
	var apart []trace.Event
	if end != nil {
		apart = n.copies.note(b, queue, about, end, at)
	}
	for _, d := range took {
		at -= int64(d)
	}
	for i, d := range took {
		e := about
		e.Kind, e.Started, e.Ended = trace.Device, at, at+int64(d)
		switch {
		case i < len(b.Parts):
			e.Kind = b.Parts[i]
		case len(took) > 1:
			e.Kind = trace.DeviceHead
		}
		around(ring, e, apart)
		at += int64(max(d, time.Duration(0)))
	}
	for i := range apart {
		ring.Record(&apart[i])
	}
}
