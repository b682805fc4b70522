//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/rt"
	"krater/kernels/device"
)

// gateBytes is the room of a bridge's gate, in front of the memory that Host returns.
const gateBytes = 64

// bridge implements device.Bridge.
type bridge struct {
	dev  *Device // that made it
	from *Device // nil: no GPU
	all  []byte  // the gate's word, then what Host returns
	at   launch.Ptr
	gate *rt.Gate
	peer bool
	mats []launch.Mat // reused
	list []rt.PeerCopy
}

// NewBridge makes a bridge with memory of this GPU's driver. It belongs to one batch.
func (d *Device) NewBridge(from device.Device, bytes int) (device.Bridge, error) {
	b := &bridge{dev: d}
	var err error
	if b.all, b.at, err = d.gpu.MapHost(gateBytes + device.SumBytes + bytes); err != nil {
		return nil, fmt.Errorf("%s: %d bytes of pinned host memory for a link: %w", d.name, bytes, err)
	}
	b.gate = d.gpu.NewGate(b.all, b.at)
	err = d.gpu.Share(b.all)
	if a := from.Accelerator(); a != nil && err == nil {
		other, ok := a.(*Device)
		if !ok {
			err = errors.New("an accelerator of another kind")
		} else if b.from = other; other != d {
			err = other.gpu.Share(b.all)
		}
	}
	if b.from != nil && err == nil {
		b.peer = d.gpu.Peer(b.from.gpu)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: a link from %s: %w", d.name, from.Name(), err)
	}
	return b, nil
}

// Host is the memory behind the gate.
func (b *bridge) Host() []byte { return b.all[gateBytes:] }

// Peer reports whether the GPUs have access to each other's memory.
func (b *bridge) Peer() bool { return b.peer }

// CopyPeer sends copies between the GPUs.
func (b *bridge) CopyPeer(s device.Stream, dst, src []device.Mat) {
	b.list = b.list[:0]
	for i := range src {
		from, ok := src[i].Buf.(*buffer)
		if !ok || from.dev != b.from || !src[i].Dense() || !dst[i].Dense() || src[i].Bytes() != dst[i].Bytes() {
			refuse("CopyPeer", fmt.Sprintf("%s to %s", src[i], dst[i]))
		}
		b.list = append(b.list, rt.PeerCopy{Dst: mat(dst[i]).At, Src: mat(src[i]).At, Bytes: src[i].Bytes()})
	}
	s.(*Stream).s.CopyPeer(b.from.gpu, b.list)
}

// Sum sends what the stream has, and adds the launch.
func (b *bridge) Sum(s device.Stream, at int, rows []device.Mat) {
	own := s.(*Stream)
	b.mats = b.mats[:0]
	for _, m := range rows {
		b.mats = append(b.mats, mat(m))
	}
	own.s.Cut()
	elem.Sums(&own.s.List, b.at+launch.Ptr(gateBytes+at), b.mats)
}

// Open opens the gate once s has passed.
func (b *bridge) Open(s device.Stream) error { return s.(*Stream).s.OpenGate(b.gate) }

// Pass makes s wait for the gate.
func (b *bridge) Pass(s device.Stream) { s.(*Stream).s.PassGate(b.gate) }

// Passed reports whether no stream waits for the gate.
func (b *bridge) Passed() bool { return b.gate.Passed() }

// Force opens the gate from the host.
func (b *bridge) Force() { b.gate.Force() }

// Close frees the memory.
func (b *bridge) Close() {
	b.dev.gpu.Unshare(b.all)
	if b.from != nil && b.from != b.dev {
		b.from.gpu.Unshare(b.all)
	}
	_ = b.dev.gpu.FreeHost(b.all) // the driver frees the memory of a lost GPU
}
