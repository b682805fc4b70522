//go:build unix

package machine

import "golang.org/x/sys/unix"

// FreeDisk returns the space a user without privileges has in the file system of a folder.
func FreeDisk(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
