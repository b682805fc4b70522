package cpu

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bindMemory sets the node from which the pages of b, whole untouched pages, will be taken: only
// that node, or that node first.
func bindMemory(b []byte, node int, strict bool) error {
	mode := uintptr(unix.MPOL_PREFERRED)
	if strict {
		// This also makes the system drop file pages of that node before it uses others.
		mode = unix.MPOL_BIND
	}
	var mask [nodeIDLimit / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel uses one bit less than the given number.
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		mode, uintptr(unsafe.Pointer(&mask)), nodeIDLimit+1, 0)
	if e != 0 {
		return fmt.Errorf("mbind: %w", e)
	}
	return nil
}

// pageNodes returns the node of the page of each address; negative if there is no page.
func pageNodes(addresses []unsafe.Pointer) ([]int32, error) {
	where := make([]int32, len(addresses))
	_, _, e := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(len(addresses)),
		uintptr(unsafe.Pointer(unsafe.SliceData(addresses))), 0, uintptr(unsafe.Pointer(unsafe.SliceData(where))), 0)
	if e != 0 {
		return nil, fmt.Errorf("move_pages: %w", e)
	}
	return where, nil
}
