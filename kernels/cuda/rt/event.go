//go:build cuda

package rt

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
)

// points are the points of a stream that may be waited for. They are passed in order. So a
// driver's event returns to the GPU's list when its point is known to be passed, and an Event
// that is still held finds that out by its number alone.
type points struct {
	gpu       *GPU
	s         cu.Stream
	passed    atomic.Uint64 // points up to this number are known to be passed
	recovered atomic.Uint64 // how often the stream was recovered

	// Only for the owner's thread.
	last uint64     // the newest
	open []cu.Event // of the newest points, in order
}

// openMost is the number of open points from which a stream asks which of them are passed instead
// of taking a new event.
const openMost = 16

// Event is a point of a stream. It is safe for concurrent use.
type Event struct {
	of  *points
	n   uint64
	err error // the stream's at that point: n is then the recovery that ends the failure
}

// mark makes the next point. It runs on the owner's thread.
func (p *points) mark() (uint64, error) {
	p.drop()
	if len(p.gpu.events) == 0 && len(p.open) >= openMost {
		if err := p.look(); err != nil {
			return 0, err
		}
	}
	e, err := p.gpu.event()
	if err != nil {
		return 0, err
	}
	if err := e.Record(p.s); err != nil {
		p.gpu.events = append(p.gpu.events, e)
		return 0, err
	}
	p.open = append(p.open, e)
	p.last++
	return p.last, nil
}

// look asks the driver which points are passed. It runs on the owner's thread.
func (p *points) look() error {
	p.drop()
	n := 0
	var err error
	for n < len(p.open) && err == nil {
		if err = p.open[n].Query(); err == nil {
			n++
		}
	}
	p.reach(p.last - uint64(len(p.open)-n))
	p.drop()
	if driver.NotReady(err) {
		return nil
	}
	return err
}

// reach records that points up to n are passed.
func (p *points) reach(n uint64) {
	for {
		old := p.passed.Load()
		if n <= old || p.passed.CompareAndSwap(old, n) {
			return
		}
	}
}

// drop returns events of passed points to the GPU's list. It runs on the owner's thread.
func (p *points) drop() {
	first := p.last - uint64(len(p.open)) // the last point that is not open
	if n := int64(p.passed.Load()) - int64(first); n > 0 {
		p.gpu.events = append(p.gpu.events, p.open[:n]...)
		p.open = append(p.open[:0], p.open[n:]...)
	}
}

// close ends all points: the stream is idle. It runs on the owner's thread.
func (p *points) close() {
	p.reach(p.last)
	p.drop()
}

// hold makes s wait for a point. It runs on the owner's thread.
func (p *points) hold(s cu.Stream, n uint64) error {
	if n <= p.passed.Load() {
		return nil
	}
	return s.Wait(p.open[len(p.open)-1-int(p.last-n)], 0)
}

// event takes an unused driver event, or makes one. It runs on the owner's thread.
func (c *GPU) event() (cu.Event, error) {
	if n := len(c.events); n > 0 {
		e := c.events[n-1]
		c.events = c.events[:n-1]
		return e, nil
	}
	return cu.MakeEvent(cu.DisableTiming)
}

// Record sends the gathered work to the GPU and marks the point after it, in one call to the
// GPU's thread. A step may have many points, so that thread polls until the step is complete. A
// stream only for copies leaves this to the stream of the step.
func (s *Stream) Record() *Event {
	ev := &Event{of: &s.points}
	if s.err == nil {
		s.step.cut = true
		if !s.own {
			s.gpu.owner.SetSpin(s.gpu.spin())
		}
		s.Fail(s.gpu.do(func() error {
			err := s.flush()
			if err == nil {
				ev.n, err = s.points.mark()
			}
			return err
		}))
	}
	s.clear()
	if ev.err = s.err; ev.err != nil {
		ev.n = s.points.recovered.Load() + 1
	} else {
		s.marked = ev.n
	}
	return ev
}

// After makes the stream wait for an event: work added from now on runs after it. For an event of
// this GPU nothing is sent, unless lists become graphs.
func (s *Stream) After(ev *Event) {
	s.Fail(ev.err)
	if s.err != nil || ev.of.s == s.s || ev.passed() {
		return
	}
	if ev.GPU() != s.gpu {
		s.afterOther(ev)
		return
	}
	if len(s.downs) > 0 || s.keep && len(s.List.Ops) > 0 {
		s.Flush()
	}
	s.step.cut = true
	s.holds = append(s.holds, hold{ev: ev, uploads: len(s.uploads), ops: len(s.List.Ops)})
}

// afterOther is After for an event of another GPU. The driver's event stays what it is only on that
// GPU's thread, which so enqueues the wait, with this GPU's context.
func (s *Stream) afterOther(ev *Event) {
	s.Flush()
	s.Fail(ev.GPU().do(func() error {
		if ev.passed() {
			return nil
		}
		if err := cu.PushCurrentCtx(s.gpu.ctx); err != nil {
			return err
		}
		err := ev.of.hold(s.s, ev.n)
		if _, again := cu.PopCurrentCtx(); err == nil {
			err = again
		}
		if err != nil {
			return fmt.Errorf("wait for another GPU: %w", err)
		}
		return nil
	}))
}

// GPU returns the event's GPU.
func (e *Event) GPU() *GPU { return e.of.gpu }

func (e *Event) passed() bool { return e.n <= e.of.passed.Load() }

// Done reports whether the point was reached.
func (e *Event) Done() bool {
	if e.err != nil || e.passed() { // Wait reports it
		return true
	}
	if err := e.of.gpu.do(e.of.look); err != nil {
		return true // Wait reports it
	}
	return e.passed()
}

// Err returns why the stream had failed at this point, nil if it had not. After a failure the
// work before the point may be incomplete.
func (e *Event) Err() error { return e.err }

// Wait blocks until the point is reached. If the stream had failed, it returns the reason, after
// all work that was sent before has ended.
func (e *Event) Wait() error {
	if e.err != nil {
		return errors.Join(e.err, e.of.ended(e.n))
	}
	for !e.Done() {
		driver.Nap(20 * time.Microsecond)
	}
	return e.of.gpu.Err()
}
