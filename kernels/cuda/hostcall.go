//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"time"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/hostcall"
	"krater/kernels/cuda/rt"
	"krater/kernels/device"
)

// mailbox implements device.HostCalls with a mailbox in host memory.
type mailbox struct {
	*hostcall.Host
	dev  *Device
	box  hostcall.Box
	host []byte
}

// NewHostCalls makes a mailbox in host memory that the GPU has mapped. The width of rows must be
// a multiple of 8.
func (d *Device) NewHostCalls(o device.HostCallSize) (device.HostCalls, error) {
	m := &mailbox{dev: d, box: hostcall.Box{Size: hostcall.Size{HostCallSize: o, RowType: d.RowType()}}}
	err := m.box.Check()
	if err == nil {
		m.host, m.box.Host, err = d.gpu.MapHost(m.box.Bytes())
	}
	if err == nil {
		if m.box.State, err = d.gpu.Alloc(hostcall.StateBytes, false); err != nil {
			err = errors.Join(err, d.gpu.FreeHost(m.host))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: a mailbox: %w", d.name, err)
	}
	m.Host = hostcall.NewHost(m.box.Size, m.host, m.clear)
	return m, nil
}

// Await leaves the processor to an emulated GPU between looks.
func (m *mailbox) Await(n int, stop func() bool) (device.HostCall, bool) {
	if !m.dev.gpu.Emulated() {
		return m.Host.Await(n, stop)
	}
	return m.Host.Await(n, func() bool {
		driver.Nap(20 * time.Microsecond)
		return stop()
	})
}

// clear makes the GPU wait for answers again.
func (m *mailbox) clear() error {
	return m.dev.apart(func(s *rt.Stream) { hostcall.Clear(&s.List, &m.box) })
}

// Close frees the mailbox. Steps that use it, and graphs of them, must not run any more.
func (m *mailbox) Close() {
	_ = m.dev.gpu.FreeHost(m.host) // the driver frees the memory of a lost GPU
	_ = m.dev.gpu.Release(m.box.State)
}

// box returns the mailbox of m, which must be this device's.
func (d *Device) box(op string, m device.HostCalls) *hostcall.Box {
	own, ok := m.(*mailbox)
	if !ok || own.dev != d {
		refuse(op, "a mailbox of another device")
	}
	return &own.box
}
