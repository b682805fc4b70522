//go:build unix

package cpu

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the pages that large mappings are made of, in bytes.
const hugePage = 2 << 20

// mmap can be replaced by tests.
var mmap = unix.MmapPtr

// mapMemory asks the system for n zeroed bytes, n > 0, on huge pages where it has them: from a huge
// page on they start at a multiple of one.
func mapMemory(n int) ([]byte, error) {
	size := n
	if n >= hugePage {
		size = (n+hugePage-1)&^(hugePage-1) + hugePage
	}
	p, err := mmap(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil { // p is nil then, so it is not a slice of n bytes
		return nil, err
	}
	if size == n {
		return unsafe.Slice((*byte)(p), n), nil
	}
	// The memory before the first multiple and after the last is unmapped.
	size -= hugePage
	skip := int(-uintptr(p) & (hugePage - 1))
	start := unsafe.Add(p, skip)
	unmap(p, skip)
	unmap(unsafe.Add(start, size), hugePage-skip)
	adviseHuge(unsafe.Slice((*byte)(start), size))
	return unsafe.Slice((*byte)(start), n), nil
}

// unmapMemory releases what mapMemory returned.
func unmapMemory(b []byte) {
	n := len(b)
	if n >= hugePage {
		n = (n + hugePage - 1) &^ (hugePage - 1)
	}
	unmap(unsafe.Pointer(unsafe.SliceData(b)), n)
}

// unmap fails only for memory that is not mapped, which would be a fault of this package.
func unmap(p unsafe.Pointer, n int) {
	if n == 0 {
		return
	}
	if err := unix.MunmapPtr(p, uintptr(n)); err != nil {
		panic("cpu: munmap: " + err.Error())
	}
}

// adviseRead asks the system to read the pages of n bytes of a mapped file. It returns before they are there. A refusal
// costs time only: they are read when they are used.
func adviseRead(p unsafe.Pointer, n int) {
	over := int(uintptr(p) & uintptr(pageSize-1))
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, -over)), over+n), unix.MADV_WILLNEED)
}

var pageSize = unix.Getpagesize()
