//go:build unix

package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// storage is the file a build writes to.
type storage interface {
	ReadAt(b []byte, off int64) (int, error)
	WriteAt(b []byte, off int64) (int, error)
	Sync() error
}

// hooks are where tests look into a build and break its disk.
type hooks struct {
	onStep func(string)
	wrap   func(storage) storage
}

// step tells the tests where a build is.
func (h *hooks) step(name string) {
	if h.onStep != nil {
		h.onStep(name)
	}
}

// part is a file that is being written, as "path.part" next to its final path.
// The lock of path is held.
type part struct {
	storage
	path string // of the finished file
	name string
	file *os.File
	hook *hooks
}

// newPart opens what an interrupted build left, or an empty file.
func newPart(path string, h *hooks) (*part, error) {
	p := &part{path: path, name: path + ".part", hook: h}
	f, err := openPart(p.name)
	if errors.Is(err, ErrForeign) {
		return nil, fmt.Errorf("%s: not a regular file; remove it", p.name)
	}
	if err != nil {
		return nil, err
	}
	p.file, p.storage = f, f
	if h.wrap != nil {
		p.storage = h.wrap(f)
	}
	return p, nil
}

// put writes and has the disk begin with it: bytes that the disk has need no
// memory, and the next Sync finds less to wait for. They stay in the page cache
// while nobody else wants the memory, for they are mapped next.
func (p *part) put(b []byte, off int64) error {
	if _, err := p.WriteAt(b, off); err != nil {
		return err
	}
	writeBack(p.file, off, int64(len(b)))
	return nil
}

// finish makes a complete file durable and puts it in its place.
func (p *part) finish() error {
	p.hook.step("sync file")
	if err := p.Sync(); err != nil {
		return err
	}
	p.hook.step("rename")
	if err := os.Rename(p.name, p.path); err != nil {
		return err
	}
	p.hook.step("sync folder")
	return syncDir(filepath.Dir(p.path))
}

// failed words an error of writing a file of size bytes. A part that filled the
// disk is taken away: nobody could go on with it where it is.
func (p *part) failed(err error, size int64) error {
	if !isFull(err) {
		return err
	}
	os.Remove(p.name)
	dir := filepath.Dir(p.path)
	return fmt.Errorf("%w: the weight cache takes %d bytes in %s, %d are free now; make room or choose another folder with --cache-dir (%w)",
		ErrFull, size, dir, freeBytes(dir), err)
}
