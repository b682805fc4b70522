package cpu

import (
	"fmt"
	"sync"
	"unsafe"

	"krater/kernels/device"
)

const (
	alignment  = 64      // bytes, of every allocation
	mapMinimum = 1 << 16 // bytes; larger buffers are mapped and unmapped
)

// buffer is a device.Buffer over host memory.
type buffer struct {
	host    []byte
	release func([]byte)
	once    sync.Once
}

func (b *buffer) Size() int    { return len(b.host) }
func (b *buffer) Host() []byte { return b.host }

// Free releases the memory; a second call does nothing. Views of the buffer must not be used
// afterwards.
func (b *buffer) Free() {
	b.once.Do(func() {
		host := b.host
		b.host = nil
		if b.release != nil {
			b.release(host)
		}
	})
}

// Alloc returns n zeroed bytes aligned to 64. The first thread to write a page decides its NUMA
// node.
func (d *Device) Alloc(n int) (device.Buffer, error) {
	if err := d.charge(n); err != nil {
		return nil, err
	}
	host, free, err := d.memory(n)
	if err != nil {
		d.used.Add(-int64(n))
		return nil, fmt.Errorf("%s: %d bytes: %w: %v", d.name, n, device.ErrOutOfMemory, err)
	}
	return &buffer{host: host, release: func([]byte) { free(); d.used.Add(-int64(n)) }}, nil
}

// memory allocates n zeroed bytes in the way that suits their number.
func (d *Device) memory(n int) (b []byte, free func(), err error) {
	switch {
	case n < mapMinimum:
		return alignedBytes(n), func() {}, nil
	case n <= slabMost:
		if b, free, err = d.slabs.take(n); err == nil {
			return b, free, nil
		}
		// There is no room for a slab, but perhaps for the piece.
	}
	if b, err = mapMemory(n); err != nil {
		return nil, nil, err
	}
	return b, func() { unmapMemory(b) }, nil
}

// charge counts n bytes as used, within the budget.
func (d *Device) charge(n int) error {
	if n < 0 {
		return fmt.Errorf("%s: allocation of %d bytes", d.name, n)
	}
	if used := d.used.Add(int64(n)); d.budget > 0 && used > d.budget {
		d.used.Add(-int64(n))
		return fmt.Errorf("%s: %d bytes asked, %d of %d in use: %w", d.name, n, used-int64(n), d.budget, device.ErrOutOfMemory)
	}
	return nil
}

// Wrap uses b in place; nothing is copied or counted.
func (d *Device) Wrap(b []byte) (device.Buffer, error) { return &buffer{host: b}, nil }

// alignedBytes is garbage-collected memory aligned to 64.
func alignedBytes(n int) []byte {
	raw := make([]byte, n+alignment)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (alignment - 1)
	return raw[skip : skip+n : skip+n]
}
