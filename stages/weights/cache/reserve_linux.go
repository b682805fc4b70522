package cache

import (
	"errors"
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
