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

// pins is the host memory that is pinned for a GPU. Pin changes it, and every copy reads it.
type pins struct {
	mu   sync.Mutex // for changes
	list atomic.Pointer[[]span]
}

// span is memory from one address up to another, and the address at which kernels see it; at 0:
// none.
type span struct {
	from, to uintptr
	at       launch.Ptr
}

func spanOf(b []byte) span {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{from: at, to: at + uintptr(len(b))}
}

// covers reports whether all of b lies in one pinned piece. The driver copies memory in two
// adjacent pieces only in two calls.
func (p *pins) covers(b []byte) bool {
	_, ok := p.find(b)
	return ok
}

// find returns the pinned piece that contains all of b.
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

// Mapped returns the address at which kernels see b, if b is pinned and they can.
func (c *GPU) Mapped(b []byte) (launch.Ptr, bool) {
	s, ok := c.pins.find(b)
	if !ok || s.at == 0 {
		return 0, false
	}
	return s.at + launch.Ptr(spanOf(b).from-s.from), true
}

// change replaces the list by the result of f for a copy of it.
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

// Pin lets the GPU read and write b in place. b must not be in the Go heap. CopyIn then reads
// memory that lies entirely in b directly, at once and of any size, and b must not change until
// the stream has passed; CopyOut writes to b directly. Pin takes some 0.1 s per GiB of touched
// memory, during which no other call reaches the GPU. If the driver refuses (memory that others
// have pinned, more than may be locked, with some drivers a file mapped read-only), Pin returns
// an error and nothing changes.
//
// release unpins b; it may be called more than once, and waits for the GPU.
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

// Share lets copies of this GPU use b, memory of MapHost of any GPU, in place. Unshare ends that.
func (c *GPU) Share(b []byte) error {
	return c.do(func() error {
		p, err := driver.HostDevicePtr(b)
		if err == nil {
			c.pins.add(b, launch.Ptr(p))
		}
		return err
	})
}

// Unshare undoes Share.
func (c *GPU) Unshare(b []byte) { c.pins.drop(b) }

// registered counts the GPUs for which each piece of memory is pinned. The driver pins it once, for
// all of them.
var registered = struct {
	sync.Mutex
	by map[span]int
}{by: map[span]int{}}

// register pins b, unless it is for another GPU. It runs on the owner's thread.
func register(b []byte) error {
	registered.Lock()
	defer registered.Unlock()
	x := spanOf(b)
	if registered.by[x] == 0 {
		if err := pin(b); err != nil {
			return err
		}
	}
	registered.by[x]++
	return nil
}

// unregister undoes register. If the context is lost, the driver has unpinned the memory.
func unregister(b []byte, lost bool) error {
	registered.Lock()
	defer registered.Unlock()
	x := spanOf(b)
	if registered.by[x]--; registered.by[x] > 0 {
		return nil
	}
	delete(registered.by, x)
	if lost {
		return nil
	}
	return driver.HostUnregister(b)
}

// pin is register for the first GPU. The driver refuses pages that the program itself may only read, unless it is
// told so, and not every driver knows that flag.
func pin(b []byte) error {
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
		return unregister(b, false)
	})
	if errors.Is(err, ErrLost) || errors.Is(err, driver.ErrClosed) {
		return unregister(b, true) // the end of the context has unpinned everything
	}
	return err
}
