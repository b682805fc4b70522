package offload

import (
	"fmt"

	"krater/kernels/device"
)

// lists is the slotStore of a device that gets the place of every expert from the host: a slot has an
// expert's pieces one after the other, and the bank of a group lists the experts in slots.
type lists struct {
	banks map[int]*bank
	size  int
}

func newLists(x *Experts) (*lists, error) {
	l := &lists{banks: x.banks}
	for layer, b := range x.banks {
		for e := range b.held {
			n := 0
			for _, p := range pieces(&b.host, e) {
				if p.host() == nil {
					return nil, fmt.Errorf("offload: layer %d, expert %d: %d bytes are not in host memory", layer, e, p.bytes)
				}
				n = p.at + aligned(p.bytes)
			}
			l.size = max(l.size, n)
		}
	}
	for _, b := range x.banks {
		if b.host.Routed != nil {
			b.dev.Routed = make([]device.Expert, len(b.host.Routed))
		}
		if b.host.Integers != nil {
			b.dev.Integers = make([]device.QExpert, len(b.host.Integers))
		}
	}
	return l, nil
}

func (l *lists) bytes() int { return l.size }

func (l *lists) close() {}

func (l *lists) copy(s device.Stream, slots device.Buffer, at, layer, e, n int) error {
	for i := range n {
		for _, p := range join(pieces(&l.banks[layer].host, e+i)) {
			s.CopyIn(bytesOf(slots, (at+i)*l.size+p.at, p.bytes), p.host())
		}
	}
	return nil
}

// present makes the device's expert e the one that lies in a slot.
func (l *lists) present(slots device.Buffer, at, layer, e int) {
	from := at * l.size
	l.banks[layer].set(e, func(p place) {
		*p.buf, *p.at = slots, from
		from += aligned(p.bytes)
	})
}

// absent leaves of the device's expert e its shape.
func (l *lists) absent(layer, e int) { l.banks[layer].set(e, func(p place) { *p.buf = nil }) }

// set copies the host's expert e to the device's bank and changes where it lies.
func (b *bank) set(e int, change func(place)) {
	f, q := of(b.dev, e)
	hostF, hostQ := of(&b.host, e)
	if f != nil {
		*f = *hostF
	} else {
		*q = *hostQ
	}
	for _, p := range places(f, q) {
		change(p)
	}
}
