//go:build cuda

package rt

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

// pins is the host memory that a GPU knows: Pin changes it, every copy looks at it.
type pins struct {
	mu   sync.Mutex // of changes
	list atomic.Pointer[[]span]
}

// span is memory from one address up to another, and where kernels see it; at 0: nowhere.
type span struct {
	from, to uintptr
	at       launch.Ptr
}

func spanOf(b []byte) span {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{from: at, to: at + uintptr(len(b))}
}

// covers reports whether all of b lies in one pinned piece: of two that touch each other
// the driver copies in two calls only.
func (p *pins) covers(b []byte) bool {
	_, ok := p.find(b)
	return ok
}

// find is the pinned piece that all of b lies in.
func (p *pins) find(b []byte) (s span, ok bool) {
	list := p.list.Load()
	if list == nil {
		return s, false
	}
	x := spanOf(b)
	i, found := slices.BinarySearchFunc(*list, x.from, func(s span, at uintptr) int {
		switch {
		case s.from < at:
			return -1
		case s.from > at:
			return 1
		}
		return 0
	})
	if !found {
		i-- // the last one that begins before it
	}
	if i < 0 || x.to > (*list)[i].to {
		return s, false
	}
	return (*list)[i], true
}

// Mapped is where kernels see b, which lies in memory that Pin has made known; false where they
// do not.
func (c *GPU) Mapped(b []byte) (launch.Ptr, bool) {
	s, ok := c.pins.find(b)
	if !ok || s.at == 0 {
		return 0, false
	}
	return s.at + launch.Ptr(spanOf(b).from-s.from), true
}

// change replaces the list by what f makes of a copy of it.
func (p *pins) change(f func([]span) []span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []span
	if old := p.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = f(list)
	p.list.Store(&list)
}

func (p *pins) add(b []byte, at launch.Ptr) {
	x := spanOf(b)
	x.at = at
	p.change(func(list []span) []span {
		i := 0
		for i < len(list) && list[i].from < x.from {
			i++
		}
		return slices.Insert(list, i, x)
	})
}

func (p *pins) drop(b []byte) {
	x := spanOf(b)
	p.change(func(list []span) []span {
		return slices.DeleteFunc(list, func(s span) bool { return s.from == x.from && s.to == x.to })
	})
}

// Pin has the GPU read and write b, which is not the Go heap's, without a copy in between:
// CopyIn takes what lies wholly in b from where it lies, at once and of any size, and b must not
// change until the stream has passed; CopyOut puts it there. It costs some 0.1 s a GiB of memory that has been
// touched, in which nobody else talks to the GPU. What the driver refuses (memory that
// others have pinned, more than may be locked, with some drivers a file mapped read-only)
// is an error that harms nothing.
//
// release ends that, once however often it is called; it waits for the GPU.
func (c *GPU) Pin(b []byte) (release func() error, err error) {
	if len(b) == 0 {
		return func() error { return nil }, nil
	}
	var at launch.Ptr
	if err := c.do(func() error {
		if err := register(b); err != nil {
			return err
		}
		if p, err := driver.HostDevicePtr(b); err == nil {
			at = launch.Ptr(p)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("%d bytes of host memory cannot be pinned (mapped read-only, pinned already, or more than may be locked?): %w", len(b), err)
	}
	c.pins.add(b, at)
	return sync.OnceValue(func() error { return c.unpin(b) }), nil
}

// register pins b. Pages that the program itself may only read are refused unless that is
// said, which not every driver knows. It runs on the owner's thread.
func register(b []byte) error {
	err := driver.HostRegister(b, driver.Portable|driver.DeviceMap)
	if err == nil || driver.Sticky(err) || driver.OutOfMemory(err) {
		return err
	}
	if again := driver.HostRegister(b, driver.Portable|driver.ReadOnly); again != nil {
		return errors.Join(err, again)
	}
	return nil
}

func (c *GPU) unpin(b []byte) error {
	c.pins.drop(b)
	err := c.do(func() error {
		if err := cu.Synchronize(); err != nil {
			return err
		}
		return driver.HostUnregister(b)
	})
	if errors.Is(err, ErrLost) || errors.Is(err, driver.ErrClosed) {
		return nil // the context's end has unpinned everything
	}
	return err
}
