package hostsim

import (
	"sync/atomic"
	"time"

	"krater/kernels/device"
)

// begun is the zero of timestamps in real time.
var begun = time.Now()

// timestamp is a time on the virtual time line; on a device without rates or with Options.Async, the
// real time at which the stream passed it.
type timestamp struct {
	dev *Device
	at  atomic.Int64 // ns; below 0: not passed
}

func (m *timestamp) pass(at time.Duration) { m.at.Store(int64(at)) }

// Ago implements device.Timestamp.
func (m *timestamp) Ago(list []device.Timestamp, ago []time.Duration) {
	now := m.at.Load()
	for i := range list {
		switch x, ok := list[i].(*timestamp); {
		case !ok || x.dev != m.dev || m.dev.Err() != nil:
			ago[i] = device.Never
		case now < 0 || x.at.Load() < 0:
			ago[i] = device.NotPassed
		default:
			ago[i] = time.Duration(now - x.at.Load())
		}
	}
}

// Release implements device.Timestamp.
func (m *timestamp) Release() {}

// timeless reports whether nothing takes time on the virtual time line, or streams run in real time.
func (d *Device) timeless() bool { return d.async || d.rates == Rates{} }

// Clock reads the virtual clock, or the real one if the device is timeless.
func (s *stream) Clock() device.Clock { return s }

// Timestamp implements device.Clock.
func (s *stream) Timestamp() device.Timestamp {
	m := &timestamp{dev: s.dev}
	if s.dev.timeless() {
		m.pass(-1)
		s.push(item{op: "Timestamp", look: m})
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
func (s *stream) WaitTimed(e device.Event) (from, to device.Timestamp) {
	from = s.Timestamp()
	s.Wait(e)
	return from, s.Timestamp()
}
