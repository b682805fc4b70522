// Package link carries rows from the memory of one rank to that of the next.
package link

import (
	"errors"
	"fmt"

	"krater/kernels/device"
)

// Link carries rows of a batch between two devices. It belongs to one batch.
type Link interface {
	// Name says how it carries: "direct", "bounce".
	Name() string
	// Carry copies src[i] of the sending device to dst[i], of equal size; all are dense. It waits
	// for the work of from. What is enqueued on to afterwards finds the rows; the copy may still be
	// under way when Carry returns. An error means only that the rows were not copied.
	Carry(from, to device.Stream, src, dst []device.Mat) error
}

// Kind makes links of one kind between two devices; ok is false if it cannot connect them.
type Kind func(from, to device.Device) (l Link, ok bool)

// Kinds are all of them, the fastest first.
func Kinds() []Kind { return []Kind{Direct, Bounce} }

// Direct links copy within memory that the host addresses.
func Direct(from, to device.Device) (Link, bool) {
	for _, dev := range []device.Device{from, to} {
		b, err := dev.Alloc(4)
		if err != nil {
			return nil, false
		}
		addressable := b.Host() != nil
		b.Free()
		if !addressable {
			return nil, false
		}
	}
	return direct{}, true
}

type direct struct{}

func (direct) Name() string { return "direct" }

func (direct) Carry(from, to device.Stream, src, dst []device.Mat) error {
	if err := from.Synchronize(); err != nil {
		return err
	}
	for i := range src {
		to.CopyIn(dst[i], host(src[i]))
	}
	return to.Synchronize() // the next step writes src
}

// host is the memory of a dense matrix that the host addresses.
func host(m device.Mat) []byte { return m.Buf.Host()[m.Off:][:m.Bytes()] }

// Bounce links copy through host memory.
func Bounce(_, _ device.Device) (Link, bool) { return new(bounce), true }

type bounce struct{ room [][]byte }

func (*bounce) Name() string { return "bounce" }

func (l *bounce) Carry(from, to device.Stream, src, dst []device.Mat) error {
	for len(l.room) < len(src) {
		l.room = append(l.room, nil)
	}
	for i, m := range src {
		n := m.Bytes()
		if cap(l.room[i]) < n {
			l.room[i] = make([]byte, n)
		}
		from.CopyOut(l.room[i][:n], m)
	}
	if err := from.Synchronize(); err != nil {
		return err
	}
	for i, m := range dst {
		to.CopyIn(m, l.room[i][:m.Bytes()])
	}
	return nil
}

// Choose makes a link of the first kind that passes a Test between two devices. src and dst are
// matrices of the largest size that the link will carry; the test overwrites them. fallen are the
// faults of the kinds that did not pass. If no kind passes, Choose returns them as an error.
func Choose(kinds []Kind, from, to device.Stream, src, dst device.Mat) (l Link, fallen []error, err error) {
	for _, kind := range kinds {
		l, ok := kind(from.Device(), to.Device())
		if !ok {
			continue
		}
		if err := Test(l, from, to, src, dst); err != nil {
			fallen = append(fallen, fmt.Errorf("%s: %w", l.Name(), err))
			if err := errors.Join(from.Recover(), to.Recover()); err != nil {
				return nil, fallen, fmt.Errorf("%s: %w", l.Name(), err)
			}
			continue
		}
		return l, fallen, nil
	}
	return nil, fallen, fmt.Errorf("no link from %s to %s works: %w", from.Device().Name(), to.Device().Name(), errors.Join(fallen...))
}
