package placement

import (
	"errors"
	"fmt"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages/offload"
)

// line is the streams of a placement: copies of experts to the device, and the work of experts that
// are there. A copy waits for the work that used its slot last, and work waits for the copies of
// its experts. Nothing else waits.
type line struct {
	x      *offload.Experts
	copies device.Stream
	// work is a stream for experts alone, which run at the same time as the rest of a layer; nil:
	// they run on the streams of batches.
	work   device.Stream
	worked bool // since join
	slots  []mark
	count  int64                   // enqueued copies and works
	copied map[device.Stream]int64 // the newest load that a stream already waits for
	used   map[device.Stream]int64 // the newest work of a stream that copies already wait for
	due    []due
}

// mark is when a slot was last loaded and used, by line.count (0: never), and the events to wait
// for.
type mark struct {
	load, use     int64
	loaded, freed device.Event
	by            device.Stream // that used the slot
}

// due is an event of a stream to wait for.
type due struct {
	by    device.Stream
	count int64
	at    device.Event
}

func newLine(dev device.Device, x *offload.Experts) (l line, err error) {
	l.x, l.copied, l.used = x, map[device.Stream]int64{}, map[device.Stream]int64{}
	if a := dev.Accelerator(); a != nil {
		l.copies, err = a.NewCopyStream()
		return l, err
	}
	if l.copies, err = dev.NewStream(); err == nil {
		l.work, err = dev.NewStream()
	}
	return l, err
}

// load enqueues the copies of experts of one layer and returns how many it has enqueued, which are
// noted even if it panics. timing gets the time that they take. If the device's driver has refused
// one of them, none of their slots holds an expert, and the stream of copies is recovered.
func (l *line) load(r *dispatch.Residency, loads []dispatch.Load, timing *device.Timing) (done int, err error) {
	l.due = l.due[:0]
	for _, x := range loads {
		m := &l.slots[x.Slot]
		switch {
		case m.use <= l.used[m.by]:
		case m.freed.Err() != nil:
			// Work of the step that failed may still be under way, and is waited for here. The
			// error is that step's, not the copy's.
			_ = m.freed.Wait()
			m.use, m.freed = 0, nil
		default:
			l.note(due{m.by, m.use, m.freed})
		}
	}
	for _, d := range l.due {
		l.copies.Wait(d.at)
		l.used[d.by] = d.count
	}
	began := timing.Begin(l.copies, int(loads[0].Layer))
	defer func() {
		l.count++
		if done > 0 {
			timing.End(l.copies, began, device.TimedSpan{Kind: device.CopyIn, Layer: int(loads[0].Layer), Bytes: int64(done) * int64(l.x.SlotBytes())})
		} else if began != nil {
			began.Release()
		}
		e := l.copies.Record()
		if refused := e.Err(); refused != nil {
			for _, x := range loads[:done] {
				r.Drop(x.Slot)
				l.x.Leave(int(x.Slot))
				l.slots[x.Slot].load, l.slots[x.Slot].loaded = 0, nil
			}
			clear(l.used) // some waits may not have reached the device
			done, err = 0, fmt.Errorf("copy of experts: %w", errors.Join(refused, err, l.copies.Recover()))
			return
		}
		for _, x := range loads[:done] {
			l.slots[x.Slot].load, l.slots[x.Slot].loaded = l.count, e
		}
	}()
	for len(loads[done:]) > 0 {
		run := neighbours(loads[done:])
		for _, x := range loads[done : done+run] {
			r.Drop(x.Slot)
		}
		first := loads[done]
		if err := l.x.Load(l.copies, int(first.Slot), int(first.Layer), int(first.Expert), run); err != nil {
			return done, err
		}
		for range run {
			r.Load(loads[done])
			done++
		}
	}
	return done, nil
}

// note adds an event to wait for, and keeps only the newest one of each stream.
func (l *line) note(d due) {
	for i := range l.due {
		if l.due[i].by == d.by {
			if l.due[i].count < d.count {
				l.due[i] = d
			}
			return
		}
	}
	l.due = append(l.due, d)
}

// neighbours returns the number of loads at the start that bring consecutive experts to consecutive slots: one copy
// is enough for them.
func neighbours(loads []dispatch.Load) int {
	n := 1
	for n < len(loads) && loads[n].Slot == loads[n-1].Slot+1 && loads[n].Expert == loads[n-1].Expert+1 {
		n++
	}
	return n
}

// compute calls f to enqueue the work of experts, given by index in the step, for a batch whose
// stream is s. It reports whether the work was sent to the device; if not, the stream has the error.
func (l *line) compute(s device.Stream, r *dispatch.Residency, in *dispatch.Step, work []int32, timing *device.Timing, f func(device.Stream)) (sent bool) {
	var own *device.Timing // nil on the streams of batches, whose steps are timed as a whole
	if l.work != nil {
		s, own = l.work, timing
		l.worked = true
	}
	newest, at := l.copied[s], device.Event(nil)
	for _, i := range work {
		slot, _ := r.Slot(dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert})
		if m := &l.slots[slot]; m.load > newest {
			newest, at = m.load, m.loaded
		}
	}
	if at != nil {
		timing.Wait(s, at, int(in.Layer()))
		l.copied[s] = newest
	}
	began := own.Begin(s, int(in.Layer()))
	f(s)
	own.End(s, began, device.TimedSpan{Kind: device.Compute, Layer: int(in.Layer())})
	l.count++
	e := s.Record()
	if sent = e.Err() == nil; !sent {
		delete(l.copied, s) // the wait may not have reached the device
	}
	for _, i := range work {
		k := dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert}
		slot, _ := r.Slot(k)
		m := &l.slots[slot]
		m.use, m.freed, m.by = l.count, e, s
		r.Use(k)
	}
	return sent
}

// join makes a batch's stream wait for the work.
func (l *line) join(s device.Stream) {
	if l.worked {
		s.Wait(l.work.Record())
		l.worked = false
	}
}

// mark is an event after the work; nil if that is on the streams of batches.
func (l *line) mark() device.Event {
	if l.work == nil {
		return nil
	}
	return l.work.Record()
}

// close waits for both streams and closes them. Other calls report what fails.
func (l *line) close() {
	for _, s := range []device.Stream{l.copies, l.work} {
		if s == nil {
			continue
		}
		_ = s.Synchronize()
		s.Close()
	}
}
