package hostsim

import (
	"math/rand/v2"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestTimes: compute and both copy engines overlap, streams and events order them.
func TestTimes(t *testing.T) {
	us := time.Microsecond
	d := simulated(t, Options{Rates: Rates{
		Up:     Link{BytesPerSecond: 1e9, Latency: 10 * us}, // 1 byte a ns
		Down:   Link{BytesPerSecond: 5e8},
		Memory: 4e9, Flops: 1e9, Launch: 5 * us,
	}})
	clock := d.Clock()
	m := alloc(t, d, tensor.F32, 1, 1000) // 4000 bytes
	w := alloc(t, d, tensor.F32, 10, 1000)
	out := alloc(t, d, tensor.F32, 1, 10)
	compute, copies := newStream(t, d), newStream(t, d)
	src := make([]byte, 4000)

	// A copy of 10+4 us and an operator of 5+2 us (8000 bytes) begin together.
	copies.CopyIn(m, src)
	run(d, compute, func(l *device.List) { l.Add(m, m) })
	want := func(what string, got, ns time.Duration) {
		t.Helper()
		if got != ns {
			t.Errorf("%s at %v, want %v", what, got, ns)
		}
	}
	copied := copies.Record()
	end, _ := At(copied)
	want("the copy ends", end, 14*us)
	end, _ = At(compute.Record())
	want("the sum ends", end, 7*us)
	// The next operator waits for the copy; it is bound by its 20,000 flops.
	compute.Wait(copied)
	run(d, compute, func(l *device.List) { l.MatMul(out, m, device.QRows{}, &device.Weight{F: w}) })
	end, _ = At(compute.Record())
	want("the product ends", end, 14*us+5*us+20*us)
	// Another stream's operator goes before it, where it fits.
	run(d, copies, func(l *device.List) { l.Add(w.RowRange(0, 1), w.RowRange(0, 1)) }) // ready at 14: the product has the engine
	end, _ = At(copies.Record())
	want("an operator behind the copy ends", end, 46*us)
	third := newStream(t, d)
	run(d, third, func(l *device.List) { l.Add(w.RowRange(1, 2), w.RowRange(1, 2)) }) // fits between 7 and 14
	end, _ = At(third.Record())
	want("an operator that is ready at once ends", end, 14*us)
	want("the host", clock.Now(), 0)

	if err := copied.Wait(); err != nil {
		t.Fatal(err)
	}
	want("the host after the copy", clock.Now(), 14*us)
	// Copies in the other direction overlap with both.
	third.CopyOut(src, m) // ready at 14, 8 us
	if err := third.Synchronize(); err != nil {
		t.Fatal(err)
	}
	want("the host after the copy down", clock.Now(), 22*us)
	clock.Advance(78 * us)
	run(d, third, func(l *device.List) { l.Add(m, m) })
	end, _ = At(third.Record())
	want("an operator enqueued after the host worked ends", end, 107*us)
	for _, s := range []device.Stream{compute, copies, third} {
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	want("the host at the end", clock.Now(), 107*us)
	if c := d.Counters(); c.Compute != 53*us || c.Up != 14*us || c.Down != 8*us || c.Flops != 20000 {
		t.Errorf("busy %v, %v, %v; %d flops", c.Compute, c.Up, c.Down, c.Flops)
	}
}

// TestTimesOfTwoDevices: one clock, engines apart.
func TestTimesOfTwoDevices(t *testing.T) {
	p, clock := processor(t), new(Clock)
	rates := Rates{Launch: 10}
	one, two := simulated(t, Options{CPU: p, Clock: clock, Rates: rates}), simulated(t, Options{CPU: p, Clock: clock, Rates: rates})
	m, n := alloc(t, one, tensor.F32, 1, 1), alloc(t, two, tensor.F32, 1, 1)
	a, b := newStream(t, one), newStream(t, two)
	run(one, a, func(l *device.List) { l.Add(m, m) })
	run(two, b, func(l *device.List) { l.Add(n, n) })
	b.Wait(a.Record())
	run(two, b, func(l *device.List) { l.Add(n, n) })
	if end, _ := At(b.Record()); end != 20 {
		t.Errorf("ends at %d", end)
	}
	run(one, a, func(l *device.List) { l.Add(m, m) })
	run(one, a, func(l *device.List) { l.Add(m, m) })
	b.Wait(a.Record())
	run(two, b, func(l *device.List) { l.Add(n, n) })
	if err := b.Synchronize(); err != nil || clock.Now() != 40 {
		t.Errorf("%v, %v", err, clock.Now())
	}
	if _, ok := At(newStream(t, p).Record()); ok {
		t.Error("an event of the CPU has a virtual time")
	}
	if c := two.Counters().Since(two.Counters()); c.Operators() != 0 || c.Compute != 0 || len(c.Launches) != 0 {
		t.Errorf("nothing counts as %+v", c)
	}
}

// naive takes the first nanosecond from which d are free.
type naive map[time.Duration]bool

func (n naive) take(ready, d time.Duration) time.Duration {
	for from := ready; ; from++ {
		free := true
		for i := range d {
			free = free && !n[from+i]
		}
		if free {
			for i := range d {
				n[from+i] = true
			}
			return from + d
		}
	}
}

// TestEngineFindsTheFirstGap against one that looks at every nanosecond.
func TestEngineFindsTheFirstGap(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var e engine
		oracle, now, total := naive{}, time.Duration(0), time.Duration(0)
		for i := range 60 {
			now += time.Duration(r.IntN(4))
			ready, d := now+time.Duration(r.IntN(40)), time.Duration(r.IntN(9))
			total += d
			if got, want := e.take(now, ready, d), oracle.take(ready, d); got != want {
				t.Fatalf("seed %d, piece %d: ends at %d, want %d", seed, i, got, want)
			}
			for j := 1; j < len(e.busy); j++ {
				if e.busy[j-1].to >= e.busy[j].from {
					t.Fatalf("seed %d, piece %d: %v", seed, i, e.busy)
				}
			}
		}
		if e.total != total {
			t.Fatalf("seed %d: %d busy, want %d", seed, e.total, total)
		}
	}
}

// TestTurns: what threads enqueue in turns overlaps as if they ran at the same time.
func TestTurns(t *testing.T) {
	us := time.Microsecond
	p, clock := processor(t), new(Clock)
	d := simulated(t, Options{CPU: p, Clock: clock, Rates: Rates{Launch: 10 * us}})
	host := NewProcessor(p, clock, Rates{Launch: 25 * us})
	m := alloc(t, d, tensor.F32, 1, 4)
	one, two := newStream(t, d), newStream(t, d)
	experts := func() {
		t.Helper()
		s := newStream(t, p)
		x := alloc(t, p, tensor.F32, 1, 4)
		run(host, s, func(l *device.List) { l.Experts(x, x, device.QRows{}, device.Routed{TopK: 1}) })
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	turn := func(at time.Duration, f func(), want time.Duration) {
		t.Helper()
		clock.Enter(at)
		f()
		if now := clock.Now(); now != want {
			t.Errorf("the turn from %v on ends at %v, want %v", at, now, want)
		}
	}
	operator := func(s device.Stream) func() {
		return func() {
			run(d, s, func(l *device.List) { l.Add(m, m) })
			if err := s.Synchronize(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The processor works from 0 to 25, and the device beside it, for two threads.
	turn(0, experts, 25*us)
	turn(0, operator(one), 10*us)
	turn(5*us, operator(two), 20*us) // the device is busy until 10
	turn(10*us, operator(one), 30*us)
	// A gap that a turn left is found, though time has gone on elsewhere.
	turn(12*us, func() { clock.Advance(38 * us); operator(two)() }, 60*us)
	turn(13*us, operator(one), 40*us)
	// The processor is one for all threads.
	turn(20*us, experts, 50*us)
	if c := d.Counters(); c.Compute != 50*us || host.Busy() != 50*us {
		t.Errorf("busy for %v and %v", c.Compute, host.Busy())
	}
}
