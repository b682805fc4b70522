package kerneltest

import (
	"fmt"
	"unsafe"
)

const (
	guardBytes = 256
	poison     = 0xa5
)

// Guarded is memory of exactly n elements between two poisoned zones, at a chosen misalignment.
type Guarded[E any] struct {
	Data []E
	raw  []byte
	at   int // byte of raw where Data begins
}

// Guard makes n elements whose address is misalign bytes after a multiple of 64; misalign must be a
// multiple of the element's size. The elements are poisoned too, so one that is not written shows.
func Guard[E any](n, misalign int) *Guarded[E] {
	var e E
	size := int(unsafe.Sizeof(e))
	raw := make([]byte, 2*guardBytes+128+n*size)
	for i := range raw {
		raw[i] = poison
	}
	at := guardBytes + (-int(uintptr(unsafe.Pointer(&raw[guardBytes]))))&63 + misalign
	return &Guarded[E]{Data: unsafe.Slice((*E)(unsafe.Pointer(&raw[at])), n), raw: raw, at: at}
}

// GuardOf is Guard with the elements of values.
func GuardOf[E any](values []E, misalign int) *Guarded[E] {
	g := Guard[E](len(values), misalign)
	copy(g.Data, values)
	return g
}

// First returns the address of the first element, also of none.
func (g *Guarded[E]) First() *E { return (*E)(unsafe.Pointer(&g.raw[g.at])) }

// Check is an error when a byte outside Data was written.
func (g *Guarded[E]) Check() error {
	var e E
	end := g.at + len(g.Data)*int(unsafe.Sizeof(e))
	for i, b := range g.raw {
		if (i < g.at || i >= end) && b != poison {
			if i < g.at {
				return fmt.Errorf("byte %d before the first element was written", g.at-i)
			}
			return fmt.Errorf("byte %d after the last element was written", i-end)
		}
	}
	return nil
}
