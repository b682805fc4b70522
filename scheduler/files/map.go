//go:build unix

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LostError is a fault on a mapped file: it was cut, or its disk failed, while it was in use.
type LostError struct {
	Name string // of the file, without its folder
	At   int64  // byte that was to be read
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s can no longer be read from byte %d on: the file was cut or its disk failed while it was in use", e.Name, e.At)
}

// mapping is memory that stands for a file.
type mapping struct {
	memory []byte
	path   string
}

var (
	mappingsLock sync.Mutex
	mappings     []mapping
)

// mmap can be replaced by tests.
var mmap = unix.Mmap

// Map maps a whole open file for reading; an empty file is nil. If the file is cut while it is
// mapped, or its disk fails, a read of the memory faults: debug.SetPanicOnFault makes a panic
// of that, and Caught explains it. Unmap frees the memory.
func Map(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	switch {
	case size == 0:
		return nil, nil
	case size > math.MaxInt:
		err = errors.New("more than the address space has")
	}
	var b []byte
	if err == nil {
		b, err = mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "mmap", Path: f.Name(), Err: fmt.Errorf("%d bytes: %w", size, err)}
	}
	mappingsLock.Lock()
	defer mappingsLock.Unlock()
	mappings = append(mappings, mapping{b, f.Name()})
	return b, nil
}

// Unmap frees memory that Map returned.
func Unmap(b []byte) error {
	if b == nil {
		return nil
	}
	mappingsLock.Lock()
	mappings = slices.DeleteFunc(mappings, func(m mapping) bool { return &m.memory[0] == &b[0] })
	mappingsLock.Unlock()
	return unix.Munmap(b)
}

// Release drops the whole pages within b, which lies in memory that Map returned, from this
// process: they are read again when they are used. The mapping is shared and read-only, so
// nothing can be lost.
func Release(b []byte) {
	size := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (size - 1)
	if to := from + (len(b)-from)/size*size; to > from {
		_ = unix.Madvise(b[from:to], unix.MADV_DONTNEED) // advice: a refusal costs memory only
	}
}

// Guard calls do on this goroutine. A fault on a mapped file becomes a *LostError.
func Guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			lost, ok := errors.AsType[*LostError](Caught(r))
			if !ok {
				panic(r)
			}
			err = lost
		}
	}()
	return do()
}

// Caught turns the value recovered from a panic into an error. It is a *LostError for a fault on a
// mapped file.
func Caught(r any) error {
	err, ok := r.(error)
	if !ok {
		return fmt.Errorf("%v", r)
	}
	var fault interface{ Addr() uintptr } // what the runtime's error of a fault has
	if !errors.As(err, &fault) {
		return err
	}
	mappingsLock.Lock()
	defer mappingsLock.Unlock()
	for _, m := range mappings {
		if at := fault.Addr() - uintptr(unsafe.Pointer(&m.memory[0])); at < uintptr(len(m.memory)) {
			return &LostError{filepath.Base(m.path), int64(at)}
		}
	}
	return err
}
