//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory asks the system for n zeroed bytes, huge pages where it has them.
func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		adviseHuge(b)
	}
	return b, err
}

// unmapMemory gives back what mapMemory returned. It can fail only for memory
// that was not mapped, which would be a fault of this package.
func unmapMemory(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic("cpu: munmap: " + err.Error())
	}
}
