//go:build cuda

package rt

import (
	"runtime"
	"time"

	"krater/kernels/cuda/driver"
)

// askEvery is how often a waiting goroutine asks the driver whether the GPU works.
const askEvery = 2 * time.Millisecond

// wait polls a word that the GPU writes at the end, so the owner's thread stays free for other
// streams. Failed work writes nothing, so it also asks the driver now and then. It goes on polling until the driver answers: the GPU's
// thread may itself wait for the GPU, and the GPU for masks that come once this wait has ended.
func (s *Stream) wait() error {
	type state struct {
		over bool
		err  error
	}
	begin, asked := time.Now(), time.Duration(0)
	var answer chan state // of a question that is open
	for {
		select {
		case a := <-answer:
			if answer = nil; a.over || a.err != nil {
				return a.err
			}
		default:
		}
		passed := time.Since(begin)
		nap, look := s.usual.next(passed)
		if s.gpu.Emulated() {
			nap, look = maxNap, 0
		}
		if nap > 0 {
			driver.Nap(nap)
		}
		err := driver.SpinUntil(s.word, s.count, look)
		if err == nil {
			s.usual.took(time.Since(begin))
			return nil
		}
		if passed < asked+askEvery {
			continue
		}
		asked = passed
		if answer == nil {
			answer = make(chan state, 1)
			go func(to chan<- state) {
				over := false
				err := s.gpu.do(func() (err error) { over, err = idle(s.s); return err })
				to <- state{over, err}
			}(answer)
		}
		runtime.Gosched() // other goroutines would never run if every core polled
	}
}
