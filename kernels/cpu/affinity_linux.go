package cpu

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuMask is a set of processors in the kernel's format. It has room for the largest number that a
// kernel can support.
type cpuMask [cpuLimit / 64]uint64

// pinThread binds the calling thread to cpus and returns its id.
func pinThread(cpus []int) (thread int, err error) {
	var mask cpuMask
	for _, id := range cpus {
		mask[id/64] |= 1 << (id % 64)
	}
	thread = unix.Gettid()
	_, _, e := unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if e != 0 {
		return thread, fmt.Errorf("sched_setaffinity to processors %v: %w", cpus, e)
	}
	return thread, nil
}

// threadCPUs returns the processors that a thread of this process may run on; 0 is the calling
// thread.
func threadCPUs(thread int) ([]int, error) {
	var mask cpuMask
	n, _, e := unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, uintptr(thread), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if e != 0 {
		return nil, fmt.Errorf("sched_getaffinity of thread %d: %w", thread, e)
	}
	var cpus []int
	for id := range 8 * int(n) {
		if mask[id/64]>>(id%64)&1 != 0 {
			cpus = append(cpus, id)
		}
	}
	return cpus, nil
}

// yieldThread lets the system run another thread on this core. The goroutine keeps the runtime's
// processor.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
