//go:build unix

package weights

import (
	"fmt"
	"os"
	"path/filepath"

	"krater/scheduler/files"
)

// Open maps the weights of a model folder. If a file is cut while the set is open, reads of
// what is gone fault: files.Caught.
func Open(dir string) (*Set, error) {
	s, err := open(directory(dir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	s.release = files.Release
	return s, nil
}

// directory is a folder on disk.
type directory string

func (d directory) names() ([]string, error) {
	f, err := os.Open(string(d))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d directory) has(name string) bool {
	// Stat follows links: download caches keep the files elsewhere. A broken link
	// is a missing file.
	_, err := os.Stat(filepath.Join(string(d), name))
	return err == nil
}

// open maps a file, without advice to the kernel: its own read-ahead is right.
// Read once from front to back out of a cold page cache (600 MB, a cloud disk,
// 2 cores), no advice took 0.29-0.34 s, SEQUENTIAL 0.22-0.27 s but it lets pages
// go early, which decode needs again and again; WILLNEED 0.21-0.90 s, RANDOM
// 11 s. With a warm cache all but RANDOM and WILLNEED took 4.5 ms.
func (d directory) open(name string) ([]byte, func() error, error) {
	f, err := files.Open(filepath.Join(string(d), name))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // a mapping outlives its descriptor
	data, err := files.Map(f)
	return data, func() error { return files.Unmap(data) }, err
}
