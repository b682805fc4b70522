//go:build cuda

package rt_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/rt"
)

// TestRecover: whichever call of a step the driver refuses, the stream answers that until it
// is recovered; then it works as ever, with graphs made anew.
func TestRecover(t *testing.T) {
	c := cudatest.Open(t)
	cudatest.Fail(t, "")
	s, other := c.Stream(), second(t, c)
	const n = 1 << 12
	in, at, out := pages(t, n), c.Alloc(n), c.Alloc(n)
	release, err := c.Pin(in)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, n)
	round := byte(0)
	step := func(key uint64) error { // the third time a graph
		round++
		fill(in, round)
		s.CopyIn(at, in)
		if key == 0 {
			s.CopyIn(at+8, bytes.Repeat([]byte{round}, 8)) // by staging
		}
		if !s.Repeat(key) {
			s.List.Copy(out, at, n/2)
			if key == 0 {
				e := s.Record()
				other.After(e)
				other.List.Copy(out+n/2, at+n/2, n/2)
				s.After(other.Record())
			} else {
				s.List.Copy(out+n/2, at+n/2, n/2)
			}
		}
		s.CopyOut(got, out)
		s.Submit()
		return s.Synchronize()
	}
	right := func(key uint64) error {
		if err := step(key); err != nil {
			return err
		}
		if !one(got, round) {
			return fmt.Errorf("%d, want %d", got[0], round)
		}
		return nil
	}
	seen := map[string]int{}
	for _, key := range []uint64{0, 7} {
		for range 3 {
			if err := right(key); err != nil {
				t.Fatal(err)
			}
		}
		for _, call := range []string{"cuMemcpy", "cuEventRecord", "cuStreamWaitEvent", "cuStreamWriteValue32", "cuStreamBeginCapture",
			"cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch", "cuEventCreate"} {
			for nth := 1; ; nth++ {
				if key != 0 { // as before the graph
					for _, s := range []*rt.Stream{s, other} {
						if err := s.Recover(); err != nil {
							t.Fatal(err)
						}
					}
				}
				cudatest.Fail(t, fmt.Sprintf("%s:%d:1", call, nth))
				var err error
				for i := 0; i < 3 && err == nil; i++ {
					err = right(key)
				}
				if fired := cudatest.Fail(t, ""); fired == 0 {
					if err != nil {
						t.Fatalf("%s %d: %v", call, nth, err)
					}
					break
				}
				seen[call]++
				if err == nil {
					t.Errorf("%s %d of key %d: nobody noticed", call, nth, key)
				}
				if again := step(key); !errors.Is(again, err) {
					t.Errorf("%s %d: then %v, want %v", call, nth, again, err)
				}
				for _, s := range []*rt.Stream{s, other} {
					if err := s.Recover(); err != nil {
						t.Fatalf("%s %d: %v", call, nth, err)
					}
				}
				for i := range 4 {
					if err := right(key); err != nil {
						t.Fatalf("step %d after %s %d: %v", i, call, nth, err)
					}
				}
			}
		}
	}
	for _, call := range []string{"cuMemcpy", "cuEventRecord", "cuStreamWaitEvent", "cuStreamWriteValue32", "cuStreamBeginCapture",
		"cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch"} {
		if seen[call] == 0 {
			t.Errorf("no %s was refused", call)
		}
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestEventsOfAFailedStream: who waits for one gets its error, once what was sent before has
// ended; another stream that waits for it fails with it, and both can be recovered.
func TestEventsOfAFailedStream(t *testing.T) {
	if !emulated(t, lazy) {
		return
	}
	c := cudatest.Open(t)
	s, other := c.Stream(), second(t, c)
	const n = 64
	b, at := pages(t, 2*n), c.Alloc(2*n)
	release, err := c.Pin(b)
	if err != nil {
		t.Fatal(err)
	}
	fill(b, 1)
	cudatest.Fail(t, "cuMemcpy:2:1")
	s.CopyIn(at, b[:n])
	s.CopyIn(at+launch.Ptr(n), b[n:])
	e := s.Record()
	if e.Err() == nil || !e.Done() {
		t.Fatal("the copy was not refused")
	}
	if err := e.Wait(); !errors.Is(err, e.Err()) {
		t.Errorf("%v, want %v", err, e.Err())
	}
	fill(b, 2) // the first copy has read it
	other.After(e)
	if err := other.Synchronize(); !errors.Is(err, e.Err()) {
		t.Errorf("the other stream: %v, want %v", err, e.Err())
	}
	if err := errors.Join(s.Recover(), other.Recover(), other.Synchronize()); err != nil {
		t.Fatal(err)
	}
	if got := cudatest.Download[byte](c, at, 2*n); !one(got[:n], 1) || !one(got[n:], cudatest.Poison) {
		t.Errorf("%v", got)
	}
	if err := e.Wait(); !errors.Is(err, e.Err()) {
		t.Error("a recovered stream's old event:", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
