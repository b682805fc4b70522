package hostsim

import (
	"fmt"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// processor is a CPU device, closed when the test ends.
func processor(t testing.TB) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// simulated makes a device for a test.
func simulated(t testing.TB, o Options) *Device {
	t.Helper()
	if o.CPU == nil {
		o.CPU = processor(t)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newStream(t testing.TB, d device.Device) device.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func alloc(t testing.TB, d device.Device, dt tensor.DType, rows, cols int) device.Mat {
	t.Helper()
	m, err := device.AllocMat(d, dt, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Buf.Free)
	return m
}

// put is a matrix of d with the given elements, dense.
func put[E any](t testing.TB, d device.Device, dt tensor.DType, rows, cols int, v []E) device.Mat {
	t.Helper()
	buf, err := d.Wrap(kerneltest.Bytes(v))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(buf.Free)
	return device.NewMat(buf, dt, rows, cols)
}

// get waits for s and copies a matrix to the host.
func get(t testing.TB, s device.Stream, m device.Mat) []byte {
	t.Helper()
	out := make([]byte, m.Bytes())
	s.CopyOut(out, m)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return out
}

// raised returns the text of the value with which f panics, "" if it does not.
func raised(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

// Advance says that the host was busy for d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
}

// At is when an event of a simulated device happens on its clock.
func At(e device.Event) (time.Duration, bool) {
	own, ok := e.(*event)
	if !ok {
		return 0, false
	}
	return own.at, true
}

// run computes the operators that add appends to a list.
func run(d device.Device, s device.Stream, add func(l *device.List)) {
	var l device.List
	add(&l)
	d.Run(s, l)
}
