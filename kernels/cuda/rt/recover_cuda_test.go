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

// stepper runs steps of copies over two streams of a GPU.
type stepper struct {
	t        *testing.T
	s, other *rt.Stream
	in, got  []byte
	at, out  launch.Ptr
	round    byte // that the last step copied
}

// step copies a new round from in to got. With a key, the third step of that key is a graph.
func (r *stepper) step(key uint64) error {
	r.round++
	s, half := r.s, int64(len(r.in)/2)
	secondHalf := func(l *launch.List) { l.Copy(r.out+launch.Ptr(half), r.at+launch.Ptr(half), half) }
	fill(r.in, r.round)
	s.CopyIn(r.at, r.in)
	if key == 0 {
		s.CopyIn(r.at+8, bytes.Repeat([]byte{r.round}, 8)) // by staging
	}
	if !s.Repeat(key) {
		s.List.Copy(r.out, r.at, half)
		if key == 0 {
			e := s.Record()
			r.other.After(e)
			secondHalf(&r.other.List)
			s.After(r.other.Record())
		} else {
			secondHalf(&s.List)
		}
	}
	s.CopyOut(r.got, r.out)
	s.Submit()
	return s.Synchronize()
}

// steps runs up to n steps and stops at the first error. A wrong result is an error.
func (r *stepper) steps(n int, key uint64) error {
	for i := range n {
		if err := r.step(key); err != nil {
			return err
		}
		if !one(r.got, r.round) {
			return fmt.Errorf("step %d: %d, want %d", i, r.got[0], r.round)
		}
	}
	return nil
}

func (r *stepper) recoverBoth() {
	r.t.Helper()
	if err := errors.Join(r.s.Recover(), r.other.Recover()); err != nil {
		r.t.Fatal(err)
	}
}

// refuse has the driver refuse one call in three steps, and recovers from it. It reports false if the
// steps make fewer such calls.
func (r *stepper) refuse(call string, nth int, key uint64) bool {
	r.t.Helper()
	if key != 0 { // so that the graph is made again
		r.recoverBoth()
	}
	cudatest.Fail(r.t, fmt.Sprintf("%s:%d:1", call, nth))
	err := r.steps(3, key)
	if fired := cudatest.Fail(r.t, ""); fired == 0 {
		if err != nil {
			r.t.Fatalf("%s %d: %v", call, nth, err)
		}
		return false
	}
	if err == nil {
		r.t.Errorf("%s %d of key %d: no step failed", call, nth, key)
	}
	if again := r.step(key); !errors.Is(again, err) {
		r.t.Errorf("%s %d: then %v, want %v", call, nth, again, err)
	}
	r.recoverBoth()
	if err := r.steps(4, key); err != nil {
		r.t.Fatalf("after %s %d: %v", call, nth, err)
	}
	return true
}

// TestRecover: after the driver refused any call of a step, the stream returns that error until it
// is recovered. Then it works as before, with new graphs.
func TestRecover(t *testing.T) {
	c := cudatest.Open(t)
	cudatest.Fail(t, "")
	const n = 1 << 12
	r := &stepper{t: t, s: c.Stream(), other: second(t, c), in: pages(t, n), got: make([]byte, n), at: c.Alloc(n), out: c.Alloc(n)}
	release, err := c.Pin(r.in)
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]int{}
	calls := []string{"cuMemcpy", "cuEventRecord", "cuStreamWaitEvent", "cuStreamWriteValue32", "cuStreamBeginCapture",
		"cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch"}
	for _, key := range []uint64{0, 7} {
		if err := r.steps(3, key); err != nil {
			t.Fatal(err)
		}
		for _, call := range append(calls, "cuEventCreate") { // a step may find all events made
			for nth := 1; r.refuse(call, nth, key); nth++ {
				refused[call]++
			}
		}
	}
	for _, call := range calls {
		if refused[call] == 0 {
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
