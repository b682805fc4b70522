//go:build cuda

package cuda

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"krater/kernels/cuda/driver"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// passed is an event of another device.
type passed struct{ err error }

func (passed) Done() bool    { return true }
func (p passed) Wait() error { return p.err }
func (passed) Err() error    { return nil }

// opened opens a GPU and closes it when the test ends; without a driver it skips the test.
func opened(t *testing.T, o Options) *Device {
	t.Helper()
	d, err := Open(o)
	if errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// working opens a GPU and a stream.
func working(t *testing.T) (*Device, device.Stream) {
	t.Helper()
	d := opened(t, Options{})
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.(*Stream).Close)
	return d, s
}

// TestPortable: with Portable, every GPU counts as one without Hopper's kernels and with the
// least shared memory.
func TestPortable(t *testing.T) {
	if d := opened(t, Options{Portable: true}); d.gpu.Info().Hopper || d.gpu.Info().SharedMax > 99<<10 {
		t.Errorf("%+v", d.gpu.Info())
	}
	if all := opened(t, Options{}).gpu.Info(); all.SharedMax <= 99<<10 {
		t.Errorf("%+v: nothing was left out", all)
	}
}

// run computes the operators that add appends to a list.
func run(d *Device, s device.Stream, add func(l *device.List)) {
	var l device.List
	add(&l)
	d.Run(s, l)
}

// TestCopyStream: copies of a copy stream read their sources in place, in the order of events,
// during operators and with rows that are not dense; the stream refuses operators.
func TestCopyStream(t *testing.T) {
	d, work := working(t)
	copies, err := d.NewCopyStream()
	if err != nil {
		t.Fatal(err)
	}
	defer copies.Close()
	const rows, cols = 64, 1 << 10
	host, err := syscall.Mmap(-1, 0, 4*rows*cols, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(host)
	for i := range host {
		host[i] = 0x10 | byte(i*7>>4)&0x2f // small normal numbers
	}
	release, err := d.Pin(host)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := device.AllocMat(d, tensor.F32, rows, 2*cols)
	if err != nil {
		t.Fatal(err)
	}
	out, err := device.AllocMat(d, tensor.F32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	half := wide.ColRange(cols, 2*cols)
	copies.Wait(work.Record())
	copies.CopyIn(half, host)
	work.Wait(copies.Record())
	work.Wait(passed{})
	run(d, work, func(l *device.List) { l.Add(out, half) }) // out is cleared
	got := make([]byte, len(host))
	work.CopyOut(got, out)
	if err := errors.Join(work.Synchronize(), copies.Synchronize(), release()); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, len(host))
	copies.CopyOut(want, half)
	if err := copies.Synchronize(); err != nil || !bytes.Equal(want, host) {
		t.Errorf("%v, or other bytes", err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the operator has read something else")
	}
	refused := func() (why any) {
		defer func() { why = recover() }()
		run(d, copies, func(l *device.List) { l.Add(out, half) })
		return nil
	}()
	if e, ok := refused.(*device.ShapeError); !ok {
		t.Errorf("an operator on a stream for copies: %v", e)
	}
	on := errors.New("on purpose")
	copies.Wait(passed{on})
	if err := copies.Synchronize(); !errors.Is(err, on) {
		t.Errorf("%v, want another device's error", err)
	}
}

// TestMovedRows: rows are copied whole within a GPU, and to the host and back, in the order of
// the stream.
func TestMovedRows(t *testing.T) {
	d, s := working(t)
	const rows, cols, wide = 7, 96, 130
	for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3, tensor.F32} {
		var m [2]device.Mat
		var err error
		for i := range m {
			if m[i], err = device.AllocMat(d, dt, 2*rows, wide); err != nil {
				t.Fatal(err)
			}
		}
		from, n := make([]byte, m[0].Bytes()), cols*dt.Size()
		for i := range from {
			from[i] = byte(i * 7)
		}
		want, got := make([]byte, len(from)), make([]byte, len(from))
		for r := range rows {
			copy(want[(rows+r)*wide*dt.Size():][:n], from[r*wide*dt.Size():])
		}
		copy(want[:wide*dt.Size()], from[wide*dt.Size():]) // dense rows, by way of the host
		kept := make([]byte, wide*dt.Size())
		s.CopyIn(m[0], from)
		run(d, s, func(l *device.List) {
			l.CopyRows(m[1].RowRange(rows, 2*rows).ColRange(0, cols), m[0].RowRange(0, rows).ColRange(0, cols))
		})
		s.CopyOut(kept, m[0].RowRange(1, 2))
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		s.CopyIn(m[0].RowRange(3, 4), kept)
		run(d, s, func(l *device.List) { l.CopyRows(m[1].RowRange(0, 1), m[0].RowRange(3, 4)) })
		s.CopyOut(got, m[1])
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes", dt)
		}
		m[0].Buf.Free()
		m[1].Buf.Free()
	}
}
