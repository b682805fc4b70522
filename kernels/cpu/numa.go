package cpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/machine"
)

const (
	touchChunk = 8 << 20 // bytes a worker touches or copies in turn
	roomSpare  = 1 << 28 // bytes of a node that are left free
	looksMost  = 4096    // pages looked at for a Placement
)

// AllocOn is Alloc in the memory of a node. The pages are bound to the node and touched by its
// workers, so they exist when AllocOn returns. If the node has no room, pages come from other
// nodes, because the system would otherwise end the process. If the system does not allow binding,
// the touch alone decides. Notices reports both cases; PlacementOn reports where pages are.
func (d *Device) AllocOn(node, n int) (device.Buffer, error) {
	if err := d.checkNode(node); err != nil {
		return nil, err
	}
	h := &d.homes[node]
	if n == 0 || h.Fake && n < mapMinimum {
		return d.Alloc(n)
	}
	if err := d.charge(n); err != nil {
		return nil, err
	}
	host, err := d.mapOn(h, n)
	if err != nil {
		d.used.Add(-int64(n))
		return nil, fmt.Errorf("%s: %d bytes on node %d: %w: %v", d.name, n, h.ID, device.ErrOutOfMemory, err)
	}
	return &buffer{host: host, release: func(b []byte) { unmapMemory(b); d.used.Add(-int64(n)) }}, nil
}

// mapOn maps n bytes, n > 0, in the memory of a node.
func (d *Device) mapOn(h *home, n int) ([]byte, error) {
	b, err := mapMemory(n)
	if err != nil {
		return nil, err
	}
	if !h.Fake {
		room := machine.NodeRoom(h.ID)
		strict := room == 0 || int64(n) <= room-roomSpare
		if !strict {
			d.notice(fmt.Sprintf("node %d has room for %d MB more; the rest goes to other nodes", h.ID, max(0, room-roomSpare)>>20))
		}
		if err := bindMemory(b, h.ID, strict); err != nil {
			d.notice(fmt.Sprintf("memory is not bound to node %d, its threads touch it first: %v", h.ID, err))
		}
	}
	page := os.Getpagesize()
	d.split(h, n, func(from, to int) {
		for at := from; at < to; at += page {
			b[at] = 0
		}
	})
	return b, nil
}

// CopyOn copies src to dst from byte at on, by the workers of a node. dst is memory of this device.
func (d *Device) CopyOn(node int, dst device.Buffer, at int, src []byte) error {
	if err := d.checkNode(node); err != nil {
		return err
	}
	if at < 0 || at > dst.Size() || len(src) > dst.Size()-at {
		return fmt.Errorf("%s: %d bytes at %d of a buffer of %d", d.name, len(src), at, dst.Size())
	}
	host := dst.Host()[at:]
	d.split(&d.homes[node], len(src), func(from, to int) { copy(host[from:to], src[from:to]) })
	return nil
}

// split calls work for pieces of n bytes on the workers of a node.
func (d *Device) split(h *home, n int, work func(from, to int)) {
	h.team.Run((n+touchChunk-1)/touchChunk, func(p int) {
		work(p*touchChunk, min(n, (p+1)*touchChunk))
	})
}

// scratchOn replaces old by memory of a node, for a stream. It lasts as long as the device.
func (d *Device) scratchOn(h *home, old []byte, n int) []byte {
	b, err := d.mapOn(h, n)
	if err != nil {
		// This ends like memory of the garbage collector: an operator cannot return an error.
		panic(fmt.Sprintf("cpu: %d bytes of scratch: %v", n, err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if old == nil {
		d.pieces = append(d.pieces, b)
		return b
	}
	d.pieces[slices.IndexFunc(d.pieces, func(p []byte) bool { return &p[0] == &old[0] })] = b
	unmapMemory(old)
	return b
}

func (d *Device) dropScratch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.pieces {
		unmapMemory(b)
	}
	d.pieces = nil
}

// Placement says where the pages of memory meant for a node are.
type Placement struct {
	Node   int    `json:"node"`   // the system's number
	Bytes  int64  `json:"bytes"`  // of all buffers
	Looked int    `json:"looked"` // pages looked at, evenly spread; 0: see Notice
	Right  int    `json:"right"`  // of these, on the node
	Absent int    `json:"absent"` // of these, not in memory
	Notice string `json:"notice,omitempty"`
}

// String returns a line for people.
func (p Placement) String() string {
	if p.Looked == 0 {
		return fmt.Sprintf("node %d: %d MB, not looked at: %s", p.Node, p.Bytes>>20, p.Notice)
	}
	s := fmt.Sprintf("node %d: %d MB, %d of %d pages are on it", p.Node, p.Bytes>>20, p.Right, p.Looked)
	if p.Absent > 0 {
		s += fmt.Sprintf(", %d not in memory", p.Absent)
	}
	return s
}

var errFake = errors.New("the node is made up")

// PlacementOn looks at pages of buffers that were allocated on a node, a few thousand of all.
func (d *Device) PlacementOn(node int, buffers ...device.Buffer) (Placement, error) {
	if err := d.checkNode(node); err != nil {
		return Placement{}, err
	}
	h := &d.homes[node]
	p := Placement{Node: h.ID}
	page := os.Getpagesize()
	pages := 0
	for _, b := range buffers {
		p.Bytes += int64(b.Size())
		pages += (b.Size() + page - 1) / page
	}
	var err error
	if h.Fake {
		err = errFake
	} else {
		err = p.look(buffers, page, (pages+looksMost-1)/looksMost)
	}
	if err != nil {
		p.Notice = err.Error()
	}
	return p, nil
}

// look asks for every step-th page.
func (p *Placement) look(buffers []device.Buffer, page, step int) error {
	var addresses []unsafe.Pointer
	next := 0 // pages until the next one to look at
	for _, b := range buffers {
		host := b.Host()
		n := (len(host) + page - 1) / page
		for ; next < n; next += step {
			addresses = append(addresses, unsafe.Pointer(&host[next*page]))
		}
		next -= n
	}
	if len(addresses) == 0 {
		return errors.New("there is nothing")
	}
	where, err := pageNodes(addresses)
	if err != nil {
		return err
	}
	p.Looked = len(where)
	for _, node := range where {
		switch {
		case int(node) == p.Node:
			p.Right++
		case node < 0:
			p.Absent++
		}
	}
	return nil
}
