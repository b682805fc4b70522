//go:build unix

package cpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"krater/kernels/device"
)

// TestNoMemory: where the system gives no memory, an allocation is an error that tells its size,
// whatever the size, and the device goes on.
func TestNoMemory(t *testing.T) {
	d, err := New(Options{Name: "dev", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	real := mmap
	defer func() { mmap = real }()
	mmap = func(int, int64, unsafe.Pointer, uintptr, int, int) (unsafe.Pointer, error) { return nil, unix.ENOMEM }
	for _, n := range []int{mapMinimum, 1 << 20, hugePage, slabMost, slabMost + 1, 1 << 40} {
		for name, alloc := range map[string]func() (device.Buffer, error){
			"Alloc": func() (device.Buffer, error) { return d.Alloc(n) }, "AllocOn": func() (device.Buffer, error) { return d.AllocOn(0, n) },
		} {
			b, err := alloc()
			if b != nil || !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), fmt.Sprintf("dev: %d bytes", n)) {
				t.Errorf("%s of %d bytes: %v, %v", name, n, b, err)
			}
		}
	}
	if used := d.Memory().Used; used != 0 {
		t.Errorf("%d bytes are counted as used", used)
	}
	mmap = real
	b, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	b.Free()
}
