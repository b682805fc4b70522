//go:build cuda

package rt_test

import (
	"fmt"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/device"
)

// TestTimestamps: timestamps of two streams of a GPU are on one clock, in the order of the waits.
// A timed wait begins before the awaited work ends, and ends after it.
func TestTimestamps(t *testing.T) {
	c := cudatest.Open(t)
	work, copies := c.Stream(), c.Stream()
	const size = 8 << 20
	src := make([]byte, size)
	release, err := c.Pin(src)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	at := c.Alloc(2 * size)
	for round := range 3 {
		began := copies.Timestamp()
		copies.CopyIn(at, src)
		there := copies.Timestamp()
		copied := copies.Record()
		work.List.Fill(at+size, 64, 3)
		from, to := work.AfterTimed(copied)
		work.List.Fill(at+size, 64, 4)
		end := work.Timestamp()
		if err := work.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if err := copied.Wait(); err != nil {
			t.Fatal(err)
		}
		again, nothing := work.AfterTimed(copied)
		if began == nil || there == nil || end == nil || again != nil || nothing != nil {
			t.Fatal("timestamps", began, there, end, again, nothing)
		}
		if from == nil && !c.Emulated() {
			continue // a finished copy is not waited for
		}
		list := []device.Timestamp{began, there, end}
		if from != nil {
			list = append(list, from, to)
		}
		ago := make([]time.Duration, len(list))
		end.Ago(list, ago)
		for i, d := range ago {
			if d == device.Never || d == device.NotPassed || d < 0 || d > time.Minute {
				t.Fatalf("round %d: timestamp %d of %d was %v ago", round, i, len(list), d)
			}
		}
		const blur = 2 * time.Microsecond // of the GPU's clock
		if ago[2] != 0 || ago[0] < ago[1] || from != nil && (ago[3] < ago[4] || ago[4] > ago[1]+blur) {
			t.Errorf("round %d: %v", round, ago)
		}
		for _, m := range list {
			m.Release()
		}
	}
	if got := cudatest.Download[byte](c, at+size, 64); !one(got, 4) {
		t.Error("timed work gives something else")
	}
}

// TestMomentsOfSteps: a list that may become a graph is not split for a timestamp; the end of a
// timed step is a timestamp; work that was never sent has no time.
func TestMomentsOfSteps(t *testing.T) {
	c := cudatest.Open(t)
	s := c.Stream()
	at := c.Alloc(64)
	s.Repeat(7)
	if s.Timestamp() != nil {
		t.Error("a timestamp in a step that comes again")
	}
	s.Repeat(0)
	if s.Time(true); s.End() != nil {
		t.Error("the end of a step that has not begun")
	}
	before := s.Timestamp()
	s.List.Fill(at, 64, 1)
	s.Submit()
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	end := s.End()
	unsent := s.Timestamp()
	ago := make([]time.Duration, 3)
	end.Ago([]device.Timestamp{before, unsent, end}, ago)
	if ago[0] < 0 || ago[0] > time.Minute || ago[1] != device.Never || ago[2] != 0 {
		t.Errorf("%v", ago)
	}
	end.Release() // is the step's
	if took := s.Took(); len(took) != 1 {
		t.Errorf("took %v", took)
	}
	if s.Time(false); s.End() != nil {
		t.Error("the end of a step that is not timed")
	}
}

// TestMomentsAreRefused: a refused call for a timestamp has no other effect.
func TestMomentsAreRefused(t *testing.T) {
	if !emulated(t, "KR_EMU_FAIL=cuEventRecord:1:2") {
		return
	}
	c := cudatest.Open(t)
	s := c.Stream()
	at := c.Alloc(64)
	refused := s.Timestamp()
	s.List.Fill(at, 64, 5)
	end := s.Timestamp()
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	ago := make([]time.Duration, 1)
	if end.Ago([]device.Timestamp{refused}, ago); ago[0] != device.Never {
		t.Errorf("a timestamp that was refused was %v ago", ago[0])
	}
	if got := cudatest.Download[byte](c, at, 64); !one(got, 5) {
		t.Error("the work is not done")
	}
}

// TestMomentsUseEventsAgain: no more are made than are in use.
func TestMomentsUseEventsAgain(t *testing.T) {
	if !emulated(t, "KR_EMU_FAIL=cuEventCreate:4:2") {
		return
	}
	c := cudatest.Open(t)
	s := c.Stream()
	at := c.Alloc(64)
	for range 50 {
		from := s.Timestamp()
		s.List.Fill(at, 64, 1)
		to := s.Timestamp()
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		ago := make([]time.Duration, 1)
		if to.Ago([]device.Timestamp{from}, ago); ago[0] < 0 {
			t.Fatal(ago)
		}
		from.Release()
		to.Release()
	}
}

// BenchmarkTimestamps measures two timestamps around a piece of work, read once for 50 pieces.
func BenchmarkTimestamps(b *testing.B) {
	c := cudatest.Open(b)
	at := c.Alloc(64)
	for _, timed := range []bool{false, true} {
		s := c.Stream()
		b.Run(fmt.Sprint("timed ", timed), func(b *testing.B) {
			var list []device.Timestamp
			ago := make([]time.Duration, 100)
			for n := 0; b.Loop(); n++ {
				if timed {
					list = append(list, s.Timestamp())
				}
				s.List.Fill(at, 64, 1)
				if timed {
					list = append(list, s.Timestamp())
				}
				if n%50 < 49 {
					continue
				}
				if err := s.Synchronize(); err != nil {
					b.Fatal(err)
				}
				if timed {
					list[len(list)-1].Ago(list, ago)
				}
				for _, m := range list {
					m.Release()
				}
				list = list[:0]
			}
		})
	}
}
