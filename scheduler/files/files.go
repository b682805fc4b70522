// Package files reads files that other programs made. It opens regular files only: a named
// pipe would block, and a device such as /dev/zero never ends. It bounds what is read, tells a
// git-lfs pointer from the file that it stands for, and explains faults on mapped files.
package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

var (
	// ErrNotRegular: the path leads to a directory, a pipe, a socket or a device.
	ErrNotRegular = errors.New("only regular files are read")
	// ErrDangling: the path is a link, and what it leads to is not there. It is not
	// fs.ErrNotExist: a file that may be absent may not be half there.
	ErrDangling = errors.New("the file it links to is missing")
	// ErrTooLarge: the file is larger than its reader allows.
	ErrTooLarge = errors.New("the file is too large")
	// ErrPointer: the file is a git-lfs pointer.
	ErrPointer = errors.New("this is a git-lfs pointer, not the file itself")
)

// Open opens a regular file for reading. It never blocks. Links are followed.
func Open(path string) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: path, Err: err} }
	// Some devices act on being opened, and a socket cannot be opened: look first.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if link, err := os.Readlink(path); err == nil {
			return fail(fmt.Errorf("%w: %s", ErrDangling, link))
		}
	}
	if err != nil {
		return nil, err
	}
	if err := regular(info.Mode()); err != nil {
		return fail(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err = f.Stat() // it may have been replaced meanwhile
	if err == nil {
		err = regular(info.Mode())
	}
	if err != nil {
		f.Close()
		return fail(err)
	}
	return f, nil
}

// regular names what a file is that is not a regular one.
func regular(mode fs.FileMode) error {
	kind := ""
	switch {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	default:
		kind = "a file of type " + mode.Type().String()
	}
	return fmt.Errorf("it is %s: %w", kind, ErrNotRegular)
}

// Read reads a regular file of at most limit bytes. Errors name it.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ReadAll(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// ReadAll reads an open file of at most limit bytes to its end.
func ReadAll(f fs.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size > limit {
		return nil, fmt.Errorf("%w: %d bytes, over the limit of %d", ErrTooLarge, size, limit)
	}
	b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit { // it has grown, or says no size
		return nil, fmt.Errorf("%w: over the limit of %d bytes", ErrTooLarge, limit)
	}
	return b.Bytes(), CheckPointer(info.Name(), b.Bytes())
}

// pointerHead begins every git-lfs pointer; pointerMax is more than one has bytes.
const (
	pointerHead = "version https://git-lfs"
	pointerMax  = 1024
)

// CheckPointer returns ErrPointer, with the way to the real file, if data is a git-lfs pointer.
func CheckPointer(name string, data []byte) error {
	if len(data) > pointerMax || !bytes.HasPrefix(data, []byte(pointerHead)) {
		return nil
	}
	size := ""
	if _, rest, ok := bytes.Cut(data, []byte("\nsize ")); ok {
		digits := bytes.TrimRight(rest, "\n")
		if len(digits) > 0 && len(digits) < 20 && len(bytes.Trim(digits, "0123456789")) == 0 {
			size = fmt.Sprintf(" (%s bytes)", digits)
		}
	}
	return fmt.Errorf("%w%s; fetch it in the model's folder with: git lfs pull --include %s", ErrPointer, size, filepath.Base(name))
}

// Dir is a folder whose regular files can be opened.
type Dir string

// Open implements fs.FS.
func (d Dir) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := Open(filepath.Join(string(d), filepath.FromSlash(name)))
	if err != nil { // not a nil *os.File in an interface
		return nil, err
	}
	return f, nil
}
