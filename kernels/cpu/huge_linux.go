package cpu

import "golang.org/x/sys/unix"

// adviseHuge is a wish: a kernel without transparent huge pages refuses it, and nothing depends on
// it.
func adviseHuge(b []byte) {
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
}
