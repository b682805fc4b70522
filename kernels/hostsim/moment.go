package hostsim

import (
	"sync/atomic"
	"time"

	"krater/kernels/device"
)

// begun is what moments of real time are counted from.
var begun = time.Now()

// moment is a point of a stream: on the virtual time line, or, on a device whose rates say
// nothing or that takes its time, when it was really passed.
type moment struct {
	dev *Device
	at  atomic.Int64 // ns; below 0: not passed
}

func (m *moment) pass(at time.Duration) { m.at.Store(int64(at)) }

// Ago implements device.Moment.
func (m *moment) Ago(list []device.Moment, ago []time.Duration) {
	now := m.at.Load()
	for i := range list {
		switch x, ok := list[i].(*moment); {
		case !ok || x.dev != m.dev || m.dev.Err() != nil:
			ago[i] = device.Never
		case now < 0 || x.at.Load() < 0:
			ago[i] = device.NotPassed
		default:
			ago[i] = time.Duration(now - x.at.Load())
		}
	}
}

// Release implements device.Moment.
func (m *moment) Release() {}

// timeless reports whether the virtual time line has nothing on it that takes time, or is not
// what the device's streams go by.
func (d *Device) timeless() bool { return d.async || d.rates == Rates{} }

// Clock is the virtual clock, or the real one where no rate is given or with Options.Async.
func (s *stream) Clock() device.Clock { return s }

// Moment implements device.Clock.
func (s *stream) Moment() device.Moment {
	m := &moment{dev: s.dev}
	if s.dev.timeless() {
		m.pass(-1)
		s.push(item{op: "Moment", look: m})
		return m
	}
	now, _ := s.dev.clock.times()
	s.mu.Lock()
	defer s.mu.Unlock()
	m.pass(max(now, s.ends))
	return m
}

// Cost implements device.Clock.
func (s *stream) Cost() time.Duration { return 0 }

// WaitTimed implements device.Clock.
func (s *stream) WaitTimed(e device.Event) (from, to device.Moment) {
	from = s.Moment()
	s.Wait(e)
	return from, s.Moment()
}
