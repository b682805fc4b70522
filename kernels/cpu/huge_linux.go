package cpu

import "golang.org/x/sys/unix"

const hugePage = 2 << 20 // bytes

// adviseHuge is a wish: a kernel without transparent huge pages refuses it, and
// nothing depends on it.
func adviseHuge(b []byte) {
	if len(b) >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}
