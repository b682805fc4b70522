//go:build cuda

package rt

import (
	"time"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
)

// Recover makes a stream usable again after the driver has refused a call while the GPU itself
// works. It drops work that was not sent, waits for work that was, and forgets the error and all
// graphs: the results of the lost work are undefined. If the GPU is lost, it returns the reason
// and the stream stays as it is. No other goroutine may use the stream meanwhile.
func (s *Stream) Recover() error {
	s.clear()
	s.step, s.keep, s.sent = step{}, false, false
	s.gpu.owner.SetSpin(0)
	s.count++
	want := s.count
	err := s.gpu.do(func() error {
		s.graphs.clear()
		s.graphs.seen = nil
		// If this is refused, the wait below ends when the driver's stream is empty.
		if err := driver.WriteValue32(s.s, s.doneAt, want); driver.Sticky(err) {
			return err
		}
		return nil
	})
	if err == nil {
		err = s.wait()
	}
	if err == nil {
		err = s.gpu.do(func() error { _, err := idle(s.s); return err })
	}
	if err != nil {
		s.Fail(err)
		return err
	}
	s.outs, s.used, s.err = s.outs[:0], 0, nil
	s.points.reach(s.marked)
	s.points.recovered.Add(1)
	return nil
}

// idle asks the driver whether a stream is empty. An error means that the GPU is lost. It runs on the
// owner's thread.
func idle(s cu.Stream) (bool, error) {
	err := s.Query()
	if driver.NotReady(err) {
		return false, nil
	}
	return err == nil, err
}

// ended waits until no work is running on a stream that had failed before its n-th recovery.
func (p *points) ended(n uint64) error {
	for p.recovered.Load() < n {
		over := false
		if err := p.gpu.do(func() (err error) { over, err = idle(p.s); return err }); err != nil || over {
			return err
		}
		driver.Nap(20 * time.Microsecond)
	}
	return nil
}
