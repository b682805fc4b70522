package cache

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve gives a file its full size with all blocks, so that a full disk shows
// before hours of work and not in the middle.
func reserve(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS):
			return f.Truncate(size)
		}
		return err
	}
}

// populate makes the pages of a mapping present, many at once. Where the file has
// been shortened this is an error, and no signal that ends the process. Kernels
// before 5.14 do not know it; there the pages come one by one as they are read.
func populate(b []byte) error {
	for {
		err := unix.Madvise(b, unix.MADV_POPULATE_READ)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EFAULT):
			return fmt.Errorf("%w: shortened while it was read, or its disk fails", ErrTruncated)
		case errors.Is(err, unix.EINVAL):
			return nil
		}
		return err
	}
}

// writeBack has the disk begin to write a piece of a file. It is a hint.
func writeBack(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
