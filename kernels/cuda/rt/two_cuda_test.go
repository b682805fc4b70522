//go:build cuda

package rt_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/rt"
)

// The emulator has two GPUs here. It reads this when it is first used.
func init() {
	if os.Getenv("KR_EMU_DEVICES") == "" {
		os.Setenv("KR_EMU_DEVICES", "2")
	}
}

// TestTwoGPUs: two GPUs pin the same memory, which stays pinned until both have released it, and a
// stream of one waits for work of the other.
func TestTwoGPUs(t *testing.T) {
	if err := driver.Available(); errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	var gpus [2]*rt.GPU
	var streams [2]*rt.Stream
	for i := range gpus {
		var err error
		if gpus[i], err = rt.Open(rt.Options{Index: i, Images: bin.Images}); err != nil {
			t.Skip(err)
		}
		defer gpus[i].Close()
		if streams[i], err = gpus[i].NewStream(); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
	}
	host, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(host)
	var release [2]func() error
	for i, g := range gpus {
		if release[i], err = g.Pin(host); err != nil {
			t.Fatal(err)
		}
	}
	a, err := gpus[0].Alloc(64, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := release[1](); err != nil {
		t.Fatal(err)
	}
	if _, ok := gpus[1].Mapped(host[:64]); ok {
		t.Error("memory is mapped for a GPU that has released it")
	}
	// The first GPU writes the host's memory, the second reads it when that is done.
	for i := range 64 {
		host[i] = byte(i)
	}
	streams[0].CopyIn(a, host[:64])
	streams[0].CopyOut(host[1024:1088], a)
	b, err := gpus[1].Alloc(64, false)
	if err != nil {
		t.Fatal(err)
	}
	if release[1], err = gpus[1].Pin(host); err != nil {
		t.Fatal(err)
	}
	streams[1].After(streams[0].Record())
	streams[1].CopyIn(b, host[1024:1088])
	got := make([]byte, 64)
	streams[1].CopyOut(got, b)
	if err := errors.Join(streams[1].Synchronize(), streams[0].Synchronize()); err != nil || string(got) != string(host[:64]) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range release {
		if err := release[i](); err != nil {
			t.Error(err)
		}
	}
	for _, err := range []error{gpus[0].Release(a), gpus[1].Release(b)} {
		if err != nil {
			t.Error(err)
		}
	}
}
