package placement

import (
	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages/offload"
)

// line is the two streams of a placement: copies of experts to the device, and the work
// of those that are there. A copy waits for what used its slot last, work for the
// copies of its experts, and nothing for anything else.
type line struct {
	x            *offload.Experts
	copies, work device.Stream
	worked       bool // since the group's stream was last made to wait
	slots        []mark
	count        int64 // of what was enqueued
	copied       int64 // the newest load that work waits for already
	used         int64 // the newest work that copies wait for already
}

// mark is when a slot was last loaded and used, counted by line.count, and what to wait
// for; 0: never.
type mark struct {
	load, use     int64
	loaded, freed device.Event
}

func newLine(dev device.Device, x *offload.Experts) (l line, err error) {
	l.x = x
	if l.copies, err = dev.NewStream(); err == nil {
		l.work, err = dev.NewStream()
	}
	return l, err
}

// load enqueues the copies of experts and tells how many it has enqueued, which are
// noted even where it panics.
func (l *line) load(r *dispatch.Residency, loads []dispatch.Load) (done int, err error) {
	newest, at := l.used, device.Event(nil)
	for _, x := range loads {
		if m := &l.slots[x.Slot]; m.use > newest {
			newest, at = m.use, m.freed
		}
	}
	if at != nil {
		l.copies.Wait(at)
		l.used = newest
	}
	defer func() {
		l.count++
		e := l.copies.Record()
		for _, x := range loads[:done] {
			l.slots[x.Slot].load, l.slots[x.Slot].loaded = l.count, e
		}
	}()
	for _, x := range loads {
		r.Drop(x.Slot)
		if err := l.x.Load(l.copies, int(x.Slot), int(x.Layer), int(x.Expert)); err != nil {
			return done, err
		}
		r.Load(x)
		done++
	}
	return done, nil
}

// compute has f enqueue the work of experts, named by index in the step.
func (l *line) compute(r *dispatch.Residency, in *dispatch.Step, work []int32, f func(device.Stream)) {
	newest, at := l.copied, device.Event(nil)
	for _, i := range work {
		slot, _ := r.Slot(dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert})
		if m := &l.slots[slot]; m.load > newest {
			newest, at = m.load, m.loaded
		}
	}
	if at != nil {
		l.work.Wait(at)
		l.copied = newest
	}
	l.worked = true
	f(l.work)
	l.count++
	e := l.work.Record()
	for _, i := range work {
		k := dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert}
		slot, _ := r.Slot(k)
		l.slots[slot].use, l.slots[slot].freed = l.count, e
		r.Use(k)
	}
}

// drain waits for both streams; what fails is told by who asks.
func (l *line) drain() {
	for _, s := range []device.Stream{l.copies, l.work} {
		if s != nil {
			_ = s.Synchronize()
		}
	}
}
