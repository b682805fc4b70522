//go:build cuda

package rt_test

import (
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
)

// TestStepTimes: a timed step reports the times of its parts, a replayed one the time of the
// whole, and one that is not timed nothing. Results do not change.
func TestStepTimes(t *testing.T) {
	c := cudatest.Open(t)
	s := c.Stream()
	at := c.Alloc(1 << 20)
	step := func(key uint64, timed bool) (marked int, took []time.Duration) {
		t.Helper()
		s.Time(timed)
		mark := func() {
			if s.Mark() {
				marked++
			}
		}
		if !s.Repeat(key) {
			s.List.Fill(at, 1<<20, 0)
			mark()
			s.List.Fill(at, 1<<19, byte(7))
			mark()
			s.List.Fill(at+1<<19, 1<<19, byte(7))
		}
		s.Submit()
		began := time.Now()
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		took = s.Took()
		if len(took) > 0 && time.Since(began) > time.Minute {
			t.Fatal("the GPU takes a minute")
		}
		for _, d := range took {
			if d < 0 || d > time.Minute {
				t.Errorf("a part of %v", d)
			}
		}
		if again := s.Took(); len(again) != len(took) {
			t.Errorf("asked again: %v, then %v", took, again)
		}
		if got := cudatest.Download[byte](c, at, 1<<20); !one(got, 7) {
			t.Error("a timed step gives something else")
		}
		return marked, took
	}
	for i := range 4 {
		if marked, took := step(0, true); marked != 2 || len(took) != 3 {
			t.Errorf("in parts: %d marks, %v", marked, took)
		}
		if marked, took := step(5, true); marked != 0 || len(took) != 1 {
			t.Errorf("time %d of a step that comes again: %d marks, %v", i, marked, took)
		}
	}
	s.Time(true) // and given up: nothing is sent
	if _, took := step(0, true); len(took) != 3 {
		t.Errorf("after a step that was given up: %v", took)
	}
	if marked, took := step(0, false); marked != 0 || took != nil {
		t.Errorf("a step that is not timed: %d marks, %v", marked, took)
	}
	if marked, took := step(5, false); marked != 0 || took != nil {
		t.Errorf("a repeated one: %d marks, %v", marked, took)
	}
}

// TestStepTimesUseEventsAgain: no more events are made than a step has.
func TestStepTimesUseEventsAgain(t *testing.T) {
	if !emulated(t, "KR_EMU_FAIL=cuEventCreate:4:2") {
		return
	}
	c := cudatest.Open(t)
	s := c.Stream()
	at := c.Alloc(64)
	for range 50 {
		s.Time(true)
		s.List.Fill(at, 64, 1)
		s.Mark()
		s.List.Fill(at, 64, 2)
		s.Submit()
		if err := s.Synchronize(); err != nil || len(s.Took()) != 2 {
			t.Fatal(s.Took(), err)
		}
	}
}
