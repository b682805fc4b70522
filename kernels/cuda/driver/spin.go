//go:build cuda

package driver

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrDeadline is returned by SpinUntil if the word did not change in time.
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

// SpinUntil polls until the word reads want, which uses a whole core. The word lies in mapped
// host memory. Data that the GPU wrote before it (with __threadfence_system in between) is
// visible afterwards.
func SpinUntil(word *uint32, want uint32, limit time.Duration) error {
	var start time.Time
	for i := 0; ; i++ {
		if atomic.LoadUint32(word) == want {
			return nil
		}
		if i&1023 == 0 { // read the clock rarely: it costs as much as some ten loads
			if now := time.Now(); start.IsZero() {
				start = now
			} else if now.Sub(start) > limit {
				return ErrDeadline
			}
		}
	}
}

// Nap sleeps for d plus some 60 us. time.Sleep takes up to a millisecond longer if nothing else
// runs, because the runtime then waits in epoll, which counts milliseconds.
func Nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil) // a signal ends it early, and the caller polls again
}
