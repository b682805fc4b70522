package cpu_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

func TestAllocIsZeroedAndAligned(t *testing.T) {
	d, _ := open(t, cpu.Options{})
	for _, n := range []int{0, 1, 63, 4096, 1 << 16, 5<<20 + 3} {
		b, err := d.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		host := b.Host()
		if b.Size() != n || len(host) != n {
			t.Errorf("size %d, memory %d, want %d", b.Size(), len(host), n)
		}
		if uintptr(unsafe.Pointer(unsafe.SliceData(host)))%64 != 0 {
			t.Errorf("%d bytes are not aligned", n)
		}
		for i, v := range host {
			if v != 0 {
				t.Fatalf("byte %d of %d is %d", i, n, v)
			}
			host[i] = 1
		}
		b.Free()
		b.Free()
	}
	if used := d.Memory().Used; used != 0 {
		t.Errorf("%d bytes in use after all was freed", used)
	}
}

func TestBudget(t *testing.T) {
	d, _ := open(t, cpu.Options{Budget: 1 << 20})
	a, err := d.Alloc(1 << 19)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1<<19 + 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("error %v beyond the budget", err)
	}
	if m := d.Memory(); m.Total != 1<<20 || m.Used != 1<<19 {
		t.Errorf("memory %+v", m)
	}
	if _, err := d.Wrap(make([]byte, 1<<21)); err != nil {
		t.Errorf("wrapped memory was counted: %v", err)
	}
	a.Free()
	if _, err := d.Alloc(1 << 20); err != nil {
		t.Errorf("the whole budget: %v", err)
	}
	if _, err := d.Alloc(-1); err == nil {
		t.Error("a negative size was accepted")
	}
}

func TestBudgetHoldsUnderConcurrency(t *testing.T) {
	d, _ := open(t, cpu.Options{Budget: 10_000})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if b, err := d.Alloc(3000); err == nil {
					b.Free()
				}
				if used := d.Memory().Used; used < 0 {
					t.Errorf("%d bytes in use", used)
				}
			}
		})
	}
	wg.Wait()
	if used := d.Memory().Used; used != 0 {
		t.Errorf("%d bytes in use after all was freed", used)
	}
}

func TestWrapDoesNotCopy(t *testing.T) {
	d, _ := open(t, cpu.Options{})
	memory := []byte{1, 2, 3}
	b, err := d.Wrap(memory)
	if err != nil {
		t.Fatal(err)
	}
	memory[1] = 9
	if host := b.Host(); host[1] != 9 || b.Size() != 3 {
		t.Errorf("%v", host)
	}
	b.Free()
	if memory[0] != 1 {
		t.Error("Free touched the caller's memory")
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []cpu.Options{{Threads: -1}, {Budget: -1}, {Level: level.AVX512 + 1}} {
		if d, err := cpu.New(o); err == nil {
			d.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
	d, err := cpu.New(cpu.Options{Name: "hostsim:1", Level: level.Pure})
	if err != nil {
		t.Fatal(err)
	}
	if d.Name() != "hostsim:1" || d.Level() != level.Pure {
		t.Errorf("%s at %s", d.Name(), d.Level())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("second Close: %v", err)
	}
}

func TestCopies(t *testing.T) {
	d, s := open(t, cpu.Options{})
	m, err := device.AllocMat(d, tensor.F32, 3, 5)
	if err != nil {
		t.Fatal(err)
	}
	view := m.ColRange(1, 4)
	in := kerneltest.Bytes([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9})
	s.CopyIn(view, in)
	out := make([]byte, len(in))
	s.CopyOut(out, view)
	if !bytes.Equal(in, out) {
		t.Errorf("%v came back as %v", in, out)
	}
	if all := m.F32s(); all[0] != 0 || all[4] != 0 || all[6] != 4 {
		t.Errorf("%v", all)
	}
	panicsWith(t, "CopyIn", func() { s.CopyIn(view, in[:8]) })
	panicsWith(t, "CopyOut", func() { s.CopyOut(out[:8], view) })
	e := s.Record()
	if err := e.Wait(); err != nil || !e.Done() || s.Synchronize() != nil {
		t.Error("work is complete when a call returns")
	}
}

// A decode step must not give the collector anything to do.
func TestOperatorsDoNotAllocate(t *testing.T) {
	for _, shared := range []bool{false, true} {
		d, s := open(t, cpu.Options{Threads: 2})
		if shared {
			d.ShareEverything()
		}
		step := newStep(d, s)
		step.run() // grows the scratch
		if n := testing.AllocsPerRun(20, step.run); n != 0 {
			t.Errorf("shared %v: %v allocations a step", shared, n)
		}
		held := d.Scratch()
		step.run()
		if held == 0 || d.Scratch() != held {
			t.Errorf("scratch went from %d to %d", held, d.Scratch())
		}
	}
}

// Streams of one device run at the same time.
func TestStreamsAreIndependent(t *testing.T) {
	d, s := open(t, cpu.Options{Threads: 3})
	d.ShareEverything()
	first := newStep(d, s)
	first.run()
	want := append([]float32(nil), first.out.F32s()...)
	var wg sync.WaitGroup
	for range 4 {
		own, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		step := newStep(d, own)
		wg.Go(func() {
			for range 20 {
				step.run()
				if err := kerneltest.SameBits(step.out.F32s(), want); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
