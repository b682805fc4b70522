//go:build cuda

package rt

import (
	"fmt"
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Timed makes the GPU time the work that f adds to the stream, and waits for it.
func (s *Stream) Timed(f func()) (time.Duration, error) {
	s.Flush()
	var from, to cu.Event
	mark := func(e *cu.Event) {
		s.Fail(s.gpu.do(func() error {
			var err error
			if *e, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
				return err
			}
			return e.Record(s.s)
		}))
	}
	mark(&from)
	f()
	s.Flush()
	mark(&to)
	if err := s.Synchronize(); err != nil {
		return 0, err
	}
	var ms float64
	err := s.gpu.do(func() error {
		var err error
		if ms, err = from.Elapsed(to); err != nil {
			return fmt.Errorf("time between events: %w", err)
		}
		if err = cu.DestroyEvent(&from); err == nil {
			err = cu.DestroyEvent(&to)
		}
		return err
	})
	return time.Duration(ms * float64(time.Millisecond)), err
}

// Outside calls f on the GPU's thread, to enqueue work of another library on the driver's stream.
func (s *Stream) Outside(f func(stream uintptr) error) {
	s.Flush()
	s.Fail(s.gpu.do(func() error { return f(*(*uintptr)(unsafe.Pointer(&s.s))) }))
}
