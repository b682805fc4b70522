//go:build cuda

package rt

import (
	"time"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/device"
)

var _ device.Moment = (*Moment)(nil)

// Moment is a point of a stream at which the card looks at its clock (device.Moment). A call
// that the driver refuses costs the moment, not the stream.
type Moment struct {
	card *Card
	lent bool // the event is another's
	// The owner's thread only, until the moment is released.
	ev       cu.Event
	made     bool
	recorded bool
}

// Moment is the point behind what was added; nil where that would cut what may become a graph.
func (s *Stream) Moment() *Moment {
	if s.err != nil || s.keep || s.step.replay != nil {
		return nil
	}
	if len(s.downs) > 0 {
		s.Flush()
	}
	m := &Moment{card: s.card}
	s.holds = append(s.holds, hold{to: m, uploads: len(s.uploads), ops: len(s.List.Ops)})
	return m
}

// AfterTimed is After between two moments, both nil where nothing has to be waited for.
func (s *Stream) AfterTimed(ev *Event) (from, to *Moment) {
	n := len(s.holds)
	s.After(ev)
	if s.err != nil || len(s.holds) == 0 || len(s.holds) == n || s.holds[len(s.holds)-1].ev != ev {
		return nil, nil
	}
	h := &s.holds[len(s.holds)-1]
	h.from, h.to = &Moment{card: s.card}, &Moment{card: s.card}
	return h.from, h.to
}

// record has the card look at its clock when it gets here. It runs on the owner's thread.
func (m *Moment) record(s cu.Stream) (err error) {
	if m == nil {
		return nil
	}
	if m.ev, err = m.card.clock(); err == nil {
		m.made = true
		err = m.ev.Record(s)
	}
	if m.recorded = err == nil; driver.Sticky(err) {
		return err
	}
	return nil
}

// clock takes an event with a time from those that nobody needs. It runs on the owner's
// thread.
func (c *Card) clock() (cu.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.clocks); n > 0 {
		e := c.clocks[n-1]
		c.clocks = c.clocks[:n-1]
		return e, nil
	}
	return cu.MakeEvent(cu.DefaultEvent)
}

// Ago implements device.Moment: one trip to the card's thread.
func (m *Moment) Ago(list []device.Moment, ago []time.Duration) {
	for i := range list {
		ago[i] = device.Never
	}
	_ = m.card.do(func() error { // a lost card tells no time
		for i := range list {
			x, ok := list[i].(*Moment)
			if !ok || x.card != m.card || !m.recorded || !x.recorded {
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

// Release implements device.Moment. What was added before must have been sent.
func (m *Moment) Release() {
	if !m.made || m.lent {
		return
	}
	m.made, m.recorded = false, false
	m.card.mu.Lock()
	defer m.card.mu.Unlock()
	m.card.clocks = append(m.card.clocks, m.ev)
}

// End is the end of the last part of the step that was waited for last, nil if it was not
// timed.
func (s *Stream) End() *Moment {
	t := &s.timing
	if s.err != nil || len(t.marks) < 2 {
		return nil
	}
	return &Moment{card: s.card, lent: true, ev: t.marks[len(t.marks)-1], recorded: true}
}
