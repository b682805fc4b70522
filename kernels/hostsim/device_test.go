package hostsim

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// TestBudget counts bytes exactly.
func TestBudget(t *testing.T) {
	d := simulated(t, Options{Name: "hostsim:1", Budget: 1000})
	a, err := d.Alloc(600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(401)
	if want := "hostsim:1: 401 bytes asked, 600 of 1000 in use: device: out of memory"; !errors.Is(err, device.ErrOutOfMemory) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err = d.Wrap(make([]byte, 401)); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("an upload beyond the budget: %v", err)
	}
	if _, err = d.Alloc(math.MaxInt); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("the largest size there is: %v", err)
	}
	if _, err = d.Alloc(-1); err == nil {
		t.Error("-1 bytes were allocated")
	}
	b, err := d.Alloc(400)
	if err != nil {
		t.Fatal(err)
	}
	if a.Host() != nil || a.Size() != 600 {
		t.Errorf("%d bytes, host sees %d", a.Size(), len(a.Host()))
	}
	a.Free()
	a.Free()
	if m := d.Memory(); m != (device.Memory{Total: 1000, Used: 400}) {
		t.Errorf("memory %+v", m)
	}
	b.Free()
	if used := d.cpu.Memory().Used; used != 0 {
		t.Errorf("the CPU still has %d bytes of it", used)
	}
	if c := d.Counters(); c.HighWater != 1000 || c.Allocations != 2 || c.BytesUp != 0 || d.Memory().Used != 0 {
		t.Errorf("counted %+v", c)
	}
}

// TestStreams: a stream counts until it is closed, and device.Upload leaves none.
func TestStreams(t *testing.T) {
	d := simulated(t, Options{})
	a, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	buf, err := d.Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Free()
	if err := device.Upload(d, device.NewMat(buf, tensor.U8, 1, 4), []byte("abcd")); err != nil || d.Streams() != 2 {
		t.Errorf("%v, %d streams, want 2", err, d.Streams())
	}
	a.Close()
	a.Close()
	if n := d.Streams(); n != 1 {
		t.Errorf("%d streams, want 1", n)
	}
	got := make([]byte, 4)
	b.CopyOut(got, device.NewMat(buf, tensor.U8, 1, 4))
	if err := b.Synchronize(); err != nil || string(got) != "abcd" {
		t.Errorf("%q, %v", got, err)
	}
	b.Close()
}

// TestDeferred: no result exists before a wait, and every result exists after it.
func TestDeferred(t *testing.T) {
	d := simulated(t, Options{})
	s := newStream(t, d)
	m := put(t, d, tensor.F32, 1, 2, []float32{1, 2})
	run(d, s, func(l *device.List) { l.Add(m, m) })
	out := []float32{5, 6}
	s.CopyOut(kerneltest.Bytes(out), m)
	e := s.Record()
	if !math.IsNaN(float64(out[0])) || !math.IsNaN(float64(out[1])) {
		t.Errorf("before waiting: %v, want it spoiled", out)
	}
	run(d, s, func(l *device.List) { l.Add(m, m) })
	if err := e.Wait(); err != nil {
		t.Fatal(err)
	}
	if out[0] != 2 || out[1] != 4 || !e.Done() {
		t.Errorf("after the event: %v", out)
	}
	if got := get(t, s, m); !bytes.Equal(got, kerneltest.Bytes([]float32{4, 8})) {
		t.Errorf("at the end: %v", got)
	}
}

// TestPolling gets there without waiting.
func TestPolling(t *testing.T) {
	d := simulated(t, Options{Rates: Rates{Launch: 7}})
	s := newStream(t, d)
	m := put(t, d, tensor.F32, 1, 1, []float32{1})
	for range 3 {
		run(d, s, func(l *device.List) { l.Add(m, m) })
	}
	e, polls := s.Record(), 1
	for ; !e.Done(); polls++ {
		if polls > 3 {
			t.Fatal("it never ends")
		}
	}
	if polls != 3 || d.Clock().Now() != 21 {
		t.Errorf("%d polls, %v", polls, d.Clock().Now())
	}
}

// TestWrapUploads: later changes of the source do not show.
func TestWrapUploads(t *testing.T) {
	d := simulated(t, Options{})
	s := newStream(t, d)
	src := []byte{1, 2, 3, 4}
	m := put(t, d, tensor.U8, 2, 2, src)
	src[0] = 9
	if got := get(t, s, m); !bytes.Equal(got, []byte{1, 2, 3, 4}) {
		t.Errorf("got %v", got)
	}
	if got := get(t, s, m.ColRange(1, 2)); !bytes.Equal(got, []byte{2, 4}) {
		t.Errorf("a column: %v", got)
	}
	s.CopyIn(m.ColRange(0, 1), []byte{7, 8})
	if got := get(t, s, m); !bytes.Equal(got, []byte{7, 2, 8, 4}) {
		t.Errorf("after copying a column: %v", got)
	}
	if c := d.Counters(); c.BytesUp != 6 || c.CopiesUp != 2 || c.BytesDown != 10 || c.CopiesDown != 3 {
		t.Errorf("counted %+v", c)
	}
}

// TestEventsBetweenStreams orders two streams, of one device and of two.
func TestEventsBetweenStreams(t *testing.T) {
	processor := processor(t)
	one := simulated(t, Options{CPU: processor, Name: "hostsim:0"})
	two := simulated(t, Options{CPU: processor, Name: "hostsim:1"})
	a, b, far := newStream(t, one), newStream(t, one), newStream(t, two)
	m, n := put(t, one, tensor.F32, 1, 1, []float32{1}), alloc(t, two, tensor.F32, 1, 1)
	bounce := make([]byte, 4)
	run(one, a, func(l *device.List) { l.Add(m, m) })
	b.Wait(a.Record())
	run(one, b, func(l *device.List) { l.Add(m, m) })
	b.Wait(newStream(t, processor).Record()) // of a device where all is done at once
	b.CopyOut(bounce, m)
	if got := get(t, b, m); !bytes.Equal(got, kerneltest.Bytes([]float32{4})) {
		t.Errorf("got %v", got)
	}
	b.CopyOut(bounce, m)
	if err := b.Synchronize(); err != nil {
		t.Fatal(err)
	}
	far.Wait(b.Record())
	far.CopyIn(n, bounce)
	if got := get(t, far, n); !bytes.Equal(got, kerneltest.Bytes([]float32{4})) {
		t.Errorf("on the other device: %v", got)
	}
	// A fault of one device breaks those that wait for it.
	one.Fail(Operator, 1)
	run(one, a, func(l *device.List) { l.Add(m, m) })
	far.Wait(a.Record())
	if err := far.Synchronize(); !errors.Is(err, ErrInjected) || !strings.HasPrefix(err.Error(), "hostsim:1: Wait: hostsim:0: Add: ") {
		t.Errorf("got %v", err)
	}
}

// TestFaults: the n-th use fails, the next wait returns the error, and so does every later one.
func TestFaults(t *testing.T) {
	processor := processor(t)
	for name, enqueue := range map[string]func(d *Device, s device.Stream, m device.Mat, src []byte){
		"hostsim: Add: injected fault": func(d *Device, s device.Stream, m device.Mat, _ []byte) {
			d.Fail(Operator, 2)
			for range 3 {
				run(d, s, func(l *device.List) { l.Add(m, m) })
			}
		},
		"hostsim: CopyIn: injected fault": func(d *Device, s device.Stream, m device.Mat, src []byte) {
			d.Fail(Copy, 1)
			run(d, s, func(l *device.List) { l.Add(m, m) })
			s.CopyIn(m, src)
			run(d, s, func(l *device.List) { l.Add(m, m) })
		},
		"hostsim: CopyIn: the source of a copy changed before its turn": func(d *Device, s device.Stream, m device.Mat, src []byte) {
			run(d, s, func(l *device.List) { l.Add(m, m) })
			s.CopyIn(m, src)
			src[3] = 1
			run(d, s, func(l *device.List) { l.Add(m, m) })
		},
		"hostsim: RMSNorm: memory was freed before its turn": func(d *Device, s device.Stream, m device.Mat, _ []byte) {
			w, _ := device.AllocMat(d, tensor.F32, 1, 1)
			run(d, s, func(l *device.List) { l.Add(m, m) })
			run(d, s, func(l *device.List) { l.RMSNorm(m, m, w, 1) })
			w.Buf.Free()
		},
		"hostsim: Add: Add: delta is F32 [1, 2], need F32 [1, 1]": func(d *Device, s device.Stream, m device.Mat, _ []byte) {
			run(d, s, func(l *device.List) { l.Add(m, m) })
			run(d, s, func(l *device.List) { l.Add(m, alloc(t, d, tensor.F32, 1, 2)) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := simulated(t, Options{CPU: processor})
			s, other := newStream(t, d), newStream(t, d)
			m := put(t, d, tensor.F32, 1, 1, []float32{1})
			buf := m.Buf.(*buffer)
			enqueue(d, s, m, make([]byte, 4))
			if err := d.Err(); err != nil {
				t.Fatalf("before anybody waited: %v", err)
			}
			err := s.Synchronize()
			if err == nil || err.Error() != name {
				t.Fatalf("got %v", err)
			}
			// What came before it is done, what came after is not, on any stream.
			run(d, other, func(l *device.List) { l.Add(m, m) })
			if again := other.Synchronize(); again == nil || again.Error() != name {
				t.Errorf("another stream: %v", again)
			}
			if err := other.Record().Wait(); err == nil {
				t.Error("an event is fine")
			}
			if got := buf.inner.Host(); !bytes.Equal(got, kerneltest.Bytes([]float32{2})) {
				t.Errorf("memory is %v", got)
			}
			if _, err := d.Alloc(1); err == nil || d.Err() == nil {
				t.Error("a broken device allocates")
			}
			if _, err := d.NewStream(); err == nil {
				t.Error("a broken device makes a stream")
			}
		})
	}
}

func TestFaultOfWrapAndAlloc(t *testing.T) {
	d := simulated(t, Options{})
	d.Fail(Allocation, 2)
	for i, want := range []error{nil, device.ErrOutOfMemory, nil} {
		if _, err := d.Alloc(10); !errors.Is(err, want) {
			t.Errorf("allocation %d: %v, want %v", i+1, err, want)
		}
	}
	if d.Memory().Used != 20 || d.Err() != nil {
		t.Errorf("%+v, %v", d.Memory(), d.Err())
	}
	d.Fail(Copy, 1)
	d.Fail(Copy, 0)
	if _, err := d.Wrap([]byte{1}); err != nil {
		t.Error(err)
	}
	d.Fail(Copy, 1)
	if _, err := d.Wrap([]byte{1}); !errors.Is(err, ErrInjected) || d.Memory().Used != 21 || d.Err() == nil {
		t.Errorf("%v, %+v", err, d.Memory())
	}
}

// TestCrossingWaits: two hosts drive streams that wait for one another.
func TestCrossingWaits(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("async %v", async), func(t *testing.T) {
			processor := processor(t)
			one, two := simulated(t, Options{CPU: processor, Async: async}), simulated(t, Options{CPU: processor, Async: async})
			a, b := newStream(t, one), newStream(t, two)
			m, n := put(t, one, tensor.F32, 1, 1, []float32{1}), put(t, two, tensor.F32, 1, 1, []float32{1})
			for range 10 {
				for range 50 {
					run(one, a, func(l *device.List) { l.Add(m, m) })
					b.Wait(a.Record())
					run(two, b, func(l *device.List) { l.Add(n, n) })
					a.Wait(b.Record())
				}
				var both sync.WaitGroup
				for _, s := range []device.Stream{a, b} {
					both.Go(func() {
						if err := s.Synchronize(); err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
			}
			if got := get(t, a, m); !bytes.Equal(got, kerneltest.Bytes([]float32{float32(math.Inf(1))})) {
				t.Errorf("got %v", got)
			}
			for _, d := range []*Device{one, two} {
				if c := d.Counters(); c.Launches["Add"] != 500 {
					t.Errorf("%d launches", c.Launches["Add"])
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				if err := d.Close(); err == nil {
					t.Error("closed twice")
				}
			}
		})
	}
}

// TestFreeWhileRunning: memory is not given back under an operator that runs, and
// work that comes too late for it says so.
func TestFreeWhileRunning(t *testing.T) {
	processor := processor(t)
	for range 20 {
		d := simulated(t, Options{CPU: processor, Async: true})
		s, out := newStream(t, d), alloc(t, d, tensor.F32, 256, 256)
		m, err := device.AllocMat(d, tensor.F32, 256, 256)
		if err != nil {
			t.Fatal(err)
		}
		run(d, s, func(l *device.List) { l.MatMul(out, m, device.QRows{}, &device.Weight{F: m}) })
		first := s.Record()
		for range 8 {
			run(d, s, func(l *device.List) { l.MatMul(out, m, device.QRows{}, &device.Weight{F: m}) })
		}
		if err := first.Wait(); err != nil {
			t.Fatal(err)
		}
		m.Buf.Free()
		if err := s.Synchronize(); err != nil && !errors.Is(err, ErrFreed) {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAsyncPace: copies in one direction take turns, and their real time.
func TestAsyncPace(t *testing.T) {
	const took = 20 * time.Millisecond
	d := simulated(t, Options{Async: true, Rates: Rates{Up: Link{BytesPerSecond: 1 << 20, Latency: took}}})
	a, b := newStream(t, d), newStream(t, d)
	m := alloc(t, d, tensor.F32, 1, 1)
	n := alloc(t, d, tensor.F32, 1, 1)
	start, src := time.Now(), make([]byte, 4)
	a.CopyIn(m, src)
	b.CopyIn(n, src)
	for _, s := range []device.Stream{a, b} {
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	if real := time.Since(start); real < 2*took {
		t.Errorf("two copies took %v, want at least %v", real, 2*took)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	p := processor(t)
	for _, o := range []Options{{}, {CPU: p, Budget: -1}, {CPU: p, Rates: Rates{Memory: -1}}, {CPU: p, Rates: Rates{Launch: -1}},
		{CPU: p, Rates: Rates{Up: Link{Latency: -1}}}, {CPU: p, Rates: Rates{Down: Link{BytesPerSecond: -1}}}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestRefusal: what is refused panics at once, and everything else goes on.
func TestRefusal(t *testing.T) {
	d := simulated(t, Options{})
	s := newStream(t, d)
	m := put(t, d, tensor.F32, 1, 1, []float32{1})
	d.Fail(Refusal, 2)
	refused := 0
	for range 3 {
		func() {
			defer func() {
				if r := recover(); r != nil {
					if err, ok := r.(error); !ok || !errors.Is(err, ErrRefused) || err.Error() != "hostsim: Add: refused" {
						t.Errorf("panics with %v", r)
					}
					refused++
				}
			}()
			run(d, s, func(l *device.List) { l.Add(m, m) })
		}()
	}
	if err := s.Synchronize(); err != nil || refused != 1 {
		t.Fatalf("%d refused, then %v", refused, err)
	}
	if got := m.Buf.(*buffer).inner.Host(); !bytes.Equal(got, kerneltest.Bytes([]float32{4})) {
		t.Errorf("memory is %v", got)
	}
	d.Fail(Refusal, 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a copy was not refused")
			}
		}()
		s.CopyIn(m, make([]byte, 4))
	}()
	if d.Err() != nil {
		t.Error(d.Err())
	}
}
