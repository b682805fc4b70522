//go:build cuda

package driver

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrDeadline is the answer of SpinUntil when the word did not change in time.
var ErrDeadline = errors.New("deadline passed while waiting for the GPU")

// next receives from c, first spinning, then sleeping.
func next[T any](c <-chan T, spin time.Duration) (v T, ok bool) {
	if spin > 0 {
		for start := time.Now(); ; {
			for range 100 {
				select {
				case v, ok = <-c:
					return v, ok
				default:
				}
			}
			if time.Since(start) > spin {
				break
			}
		}
	}
	v, ok = <-c
	return v, ok
}

// SpinUntil waits, burning its core, until the word reads want. The word lies in mapped
// host memory; what the GPU wrote before it (with __threadfence_system in between) is
// visible afterwards.
func SpinUntil(word *uint32, want uint32, limit time.Duration) error {
	var start time.Time
	for i := 0; ; i++ {
		if atomic.LoadUint32(word) == want {
			return nil
		}
		if i&1023 == 0 { // look at the clock rarely: it costs as much as some ten loads
			if now := time.Now(); start.IsZero() {
				start = now
			} else if now.Sub(start) > limit {
				return ErrDeadline
			}
		}
	}
}

// Nap sleeps for d, some 60 us longer. time.Sleep takes up to a millisecond longer when
// nothing else runs: then the runtime waits in epoll, which counts in milliseconds.
func Nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil) // a signal ends it early: the caller looks again
}
