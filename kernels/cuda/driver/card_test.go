//go:build cuda

package driver

import (
	"errors"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// onCard runs f on the owner's thread of a GPU or the emulator.
func onGPU(t *testing.T, f func(s cu.Stream) error) {
	t.Helper()
	o, err := NewOwner(0)
	if errors.Is(err, ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	err = o.Do(func() error {
		s, err := cu.MakeStream(cu.NonBlocking)
		if err != nil {
			return err
		}
		return errors.Join(f(s), s.Destroy())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGraphsOfWordsInHostMemory: a recorded graph runs when it is launched and not before, and an
// update changes its values.
func TestGraphsOfWordsInHostMemory(t *testing.T) {
	onGPU(t, func(s cu.Stream) error {
		page, err := HostAlloc(64, DeviceMap)
		if err != nil {
			return err
		}
		at, err := HostDevicePtr(page)
		if err != nil {
			return err
		}
		word := (*uint32)(unsafe.Pointer(&page[0]))
		record := func(v uint32) func() error {
			return func() error { return errors.Join(WriteValue32(s, at+4, 1), WriteValue32(s, at, v)) }
		}
		g, err := Capture(s, record(7))
		if err != nil {
			return err
		}
		if *word != 0 || g.Nodes() != 2 {
			t.Errorf("recording wrote %d, %d nodes", *word, g.Nodes())
		}
		if err := errors.Join(g.Upload(s), g.Launch(s), SpinUntil(word, 7, time.Second)); err != nil {
			return err
		}
		if err := errors.Join(g.Update(s, record(9)), g.Launch(s), SpinUntil(word, 9, time.Second)); err != nil {
			return err
		}
		return errors.Join(s.Synchronize(), g.Destroy(), HostFree(page))
	})
}

// TestFailedRecordingLeavesTheStream: a stream is usable after a failed recording.
func TestFailedRecordingLeavesTheStream(t *testing.T) {
	onGPU(t, func(s cu.Stream) error {
		own := errors.New("on purpose")
		if g, err := Capture(s, func() error { return own }); !errors.Is(err, own) || g != nil {
			t.Errorf("%v, %v", g, err)
		}
		g, err := Capture(s, func() error { return nil })
		if err != nil {
			return err
		}
		return errors.Join(g.Launch(s), s.Synchronize(), g.Destroy())
	})
}

// TestRegisteredMemory: pages of the program's own are copied from once they are pinned; memory
// that is not pinned cannot be unregistered.
func TestRegisteredMemory(t *testing.T) {
	onGPU(t, func(s cu.Stream) error {
		const size = 1 << 20
		b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return err
		}
		defer syscall.Munmap(b)
		for i := range b {
			b[i] = byte(i * 7 >> 3)
		}
		if err := HostRegister(b, Portable|DeviceMap); err != nil {
			return err
		}
		gpu, err := cu.MemAlloc(size)
		if err != nil {
			return err
		}
		back := make([]byte, size)
		err = errors.Join(cu.MemcpyHtoDAsync(gpu, unsafe.Pointer(&b[0]), size, s), s.Synchronize(),
			cu.MemcpyDtoH(unsafe.Pointer(&back[0]), gpu, size))
		if err == nil && string(back) != string(b) {
			t.Error("what came back is not what was sent")
		}
		err = errors.Join(err, HostUnregister(b), cu.MemFree(gpu))
		if again := HostUnregister(b); again == nil || Sticky(again) {
			t.Errorf("given back twice: %v", again)
		}
		return err
	})
}

// TestMemoryRunsOut: the error names the cause, and later calls work.
func TestMemoryRunsOut(t *testing.T) {
	onGPU(t, func(cu.Stream) error {
		if _, err := cu.MemAlloc(1 << 50); !OutOfMemory(err) || Sticky(err) {
			t.Errorf("a pebibyte: %v", err)
		}
		p, err := cu.MemAlloc(1 << 10)
		if err != nil {
			return err
		}
		return cu.MemFree(p)
	})
}
