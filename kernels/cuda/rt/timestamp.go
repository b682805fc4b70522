//go:build cuda

package rt

import (
	"time"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/device"
)

var _ device.Timestamp = (*Timestamp)(nil)

// Timestamp is a point of a stream at which the GPU reads its clock (device.Timestamp). If the driver
// refuses a call for it, the timestamp has no time, and the stream goes on.
type Timestamp struct {
	gpu  *GPU
	lent bool // the event belongs to the stream's timing
	// The owner's thread only, until the timestamp is released.
	ev       cu.Event
	made     bool
	recorded bool
}

// Timestamp adds a timestamp after earlier work; nil if that would split a list that may become a
// graph.
func (s *Stream) Timestamp() *Timestamp {
	if s.err != nil || s.keep || s.step.replay != nil {
		return nil
	}
	if len(s.downs) > 0 {
		s.Flush()
	}
	m := &Timestamp{gpu: s.gpu}
	s.holds = append(s.holds, hold{to: m, uploads: len(s.uploads), ops: len(s.List.Ops)})
	return m
}

// AfterTimed is After between two timestamps. Both are nil if there is nothing to wait for.
func (s *Stream) AfterTimed(ev *Event) (from, to *Timestamp) {
	n := len(s.holds)
	s.After(ev)
	if s.err != nil || len(s.holds) == 0 || len(s.holds) == n || s.holds[len(s.holds)-1].ev != ev {
		return nil, nil
	}
	h := &s.holds[len(s.holds)-1]
	h.from, h.to = &Timestamp{gpu: s.gpu}, &Timestamp{gpu: s.gpu}
	return h.from, h.to
}

// record makes the GPU read its clock at this point. It runs on the owner's thread.
func (m *Timestamp) record(s cu.Stream) (err error) {
	if m == nil {
		return nil
	}
	if m.ev, err = m.gpu.clock(); err == nil {
		m.made = true
		err = m.ev.Record(s)
	}
	if m.recorded = err == nil; driver.Sticky(err) {
		return err
	}
	return nil
}

// clock takes an event with a time from the unused ones, or makes one. It runs on the owner's thread.
func (c *GPU) clock() (cu.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.clocks); n > 0 {
		e := c.clocks[n-1]
		c.clocks = c.clocks[:n-1]
		return e, nil
	}
	return cu.MakeEvent(cu.DefaultEvent)
}

// Ago implements device.Timestamp. It is one trip to the owner's thread.
func (m *Timestamp) Ago(list []device.Timestamp, ago []time.Duration) {
	for i := range list {
		ago[i] = device.Never
	}
	_ = m.gpu.do(func() error { // a lost GPU has no times
		for i := range list {
			x, ok := list[i].(*Timestamp)
			if !ok || x.gpu != m.gpu || !m.recorded || !x.recorded {
				continue
			}
			if x.ev == m.ev {
				ago[i] = 0
				continue
			}
			ms, err := x.ev.Elapsed(m.ev)
			switch {
			case err == nil:
				ago[i] = time.Duration(ms * float64(time.Millisecond))
			case driver.NotReady(err):
				ago[i] = device.NotPassed
			case driver.Sticky(err):
				return err
			}
		}
		return nil
	})
}

// Release implements device.Timestamp. Earlier work must have been sent.
func (m *Timestamp) Release() {
	if !m.made || m.lent {
		return
	}
	m.made, m.recorded = false, false
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	m.gpu.clocks = append(m.gpu.clocks, m.ev)
}

// End returns the end of the last part of the step that was waited for last, nil if that was not
// timed.
func (s *Stream) End() *Timestamp {
	t := &s.timing
	if s.err != nil || len(t.marks) < 2 {
		return nil
	}
	return &Timestamp{gpu: s.gpu, lent: true, ev: t.marks[len(t.marks)-1], recorded: true}
}
