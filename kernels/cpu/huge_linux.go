package cpu

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages. A kernel without transparent huge pages refuses, and nothing
// depends on it.
func adviseHuge(b []byte) {
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
}
