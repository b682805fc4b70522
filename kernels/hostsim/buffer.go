package hostsim

import (
	"fmt"

	"krater/kernels/device"
)

// buffer is memory of one device.
type buffer struct {
	dev   *Device
	inner device.Buffer // of the CPU
	size  int
	freed bool // dev.memory is held
}

func (b *buffer) Size() int { return b.size }

// Host returns nil: the host cannot address the memory.
func (b *buffer) Host() []byte { return nil }

// Device returns the device that has the memory.
func (b *buffer) Device() device.Device { return b.dev }

// Free waits for running work and frees the memory. A second call does nothing.
// Work that uses the memory and has not run yet breaks the device.
func (b *buffer) Free() {
	d := b.dev
	d.memory.Lock()
	defer d.memory.Unlock()
	if b.freed {
		return
	}
	b.freed = true
	b.inner.Free()
	d.mu.Lock()
	d.used -= int64(b.size)
	d.mu.Unlock()
}

// Alloc returns n zeroed bytes.
func (d *Device) Alloc(n int) (device.Buffer, error) {
	if err := d.charge(n); err != nil {
		return nil, err
	}
	inner, err := d.cpu.Alloc(n)
	if err != nil {
		d.mu.Lock()
		d.used -= int64(n)
		d.mu.Unlock()
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	return &buffer{dev: d, inner: inner, size: n}, nil
}

// charge counts n bytes as used, within the budget.
func (d *Device) charge(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.fault != nil:
		return d.fault
	case n < 0:
		return fmt.Errorf("%s: allocation of %d bytes", d.name, n)
	case d.hit(Allocation):
		return fmt.Errorf("%s: %d bytes asked: %w: %w", d.name, n, device.ErrOutOfMemory, ErrInjected)
	case d.budget > 0 && int64(n) > d.budget-d.used:
		return fmt.Errorf("%s: %d bytes asked, %d of %d in use: %w", d.name, n, d.used, d.budget, device.ErrOutOfMemory)
	}
	d.used += int64(n)
	d.counters.Allocations++
	d.counters.HighWater = max(d.counters.HighWater, d.used)
	return nil
}

// Wrap uploads b and waits for the copy; b is not kept.
func (d *Device) Wrap(b []byte) (device.Buffer, error) {
	buf, err := d.Alloc(len(b))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	bad := d.hit(Copy)
	d.counters.CopiesUp++
	d.counters.BytesUp += int64(len(b))
	now, earliest := d.clock.times()
	took := d.rates.Up.time(int64(len(b)))
	end := d.up.take(earliest, now, took)
	d.mu.Unlock()
	d.clock.reach(end)
	if bad {
		d.fail("Wrap", ErrInjected)
		buf.Free()
		return nil, d.Err()
	}
	d.pace(&d.upFree, took)
	copy(buf.(*buffer).inner.Host(), b)
	return buf, nil
}
