package hub

import (
	"errors"
	"io"
	"os"
	"time"
)

// stallAfter is how long a connection may bring nothing.
const stallAfter = time.Minute

func realSystem() system {
	return system{sleep: sleep, free: freeSpace, symlink: os.Symlink, link: os.Link, step: func(string) error { return nil }, stall: stallAfter}
}

// syncFolder writes the names in a folder to the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// writeSynced writes a small file.
func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// copyFile copies a file to the disk.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
